//! The dialects, the part of a URL that names one, and their limits on the rest of the URL.

use leasehold_core::{Failure, QueueOrder};
use url::Url;

use super::{RedisConfig, Wait, invalid};

/// The library whose form of a lock is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// leasehold's own.
    #[default]
    Native,
    /// A string that is set if it does not exist.
    Plain,
    /// A hash of owners.
    Redisson,
    /// A string, and a list that wakes.
    PythonRedisLock,
}

impl Dialect {
    /// All of them, as a URL names them.
    const NAMES: &[(&str, Dialect)] = &[
        ("native", Dialect::Native),
        ("plain", Dialect::Plain),
        ("redisson", Dialect::Redisson),
        ("python-redis-lock", Dialect::PythonRedisLock),
    ];

    /// Reads what a URL says: the dialect, and whether the native lock is taken as well.
    pub(crate) fn read(text: &str) -> Result<(Dialect, bool), Failure> {
        let (name, dual) = text.strip_prefix("dual:").map_or((text, false), |name| (name, true));
        let known = Dialect::NAMES.iter().find(|(known, _)| *known == name);
        let known = known.map(|(_, dialect)| (*dialect, dual)).filter(|it| *it != (Dialect::Native, true));
        known.ok_or_else(|| {
            let names: Vec<&str> = Dialect::NAMES.iter().map(|(name, _)| *name).collect();
            let text = format!(
                "dialect={text}: known are {}, and dual: before any but the first of them",
                names.join(", ")
            );
            invalid(text)
        })
    }

    /// Returns `true` if a release is announced to waiters.
    fn notifies(self) -> bool {
        matches!(self, Dialect::Native | Dialect::Redisson)
    }
}

impl RedisConfig {
    /// Returns the configurations of two backends, where the URL says `dialect=dual:…`: the one of the
    /// other library's locks, and the native one, which are to be held together.
    pub fn dual(&self) -> Option<(RedisConfig, RedisConfig)> {
        if !self.dual {
            return None;
        }
        let (mut old, mut new) = (self.clone(), self.clone());
        (old.dual, new.dual) = (false, false);
        // The native lock promises that a grant is on replicas; the other lock is not held without it.
        old.replicas = 0;
        old.lower();
        (new.dialect, new.key_prefix) = (Dialect::Native, String::new());
        Some((old, new))
    }

    /// Refuses every dialect but leasehold's own.
    pub(crate) fn must_be_native(&self) -> Result<(), Failure> {
        if self.dialect == Dialect::Native && !self.dual {
            return Ok(());
        }
        Err(invalid("this backend speaks the native dialect only: open the URL by leasehold_redis::connect"))
    }

    /// Lowers what the dialect does not have, and refuses what was asked for and is lowered by it.
    pub(crate) fn fit_dialect(&mut self, url: &Url) -> Result<(), Failure> {
        let asked = |option: &str| url.query_pairs().find(|(name, _)| name == option).map(|(_, value)| value);
        if self.dialect == Dialect::Native {
            return match asked("key-prefix") {
                Some(_) => Err(invalid("key-prefix belongs to the other dialects: write prefix")),
                None => Ok(()),
            };
        }
        if self.key_prefix.len() > 128 || self.key_prefix.chars().any(char::is_control) {
            return Err(invalid("key-prefix: write at most 128 bytes without control characters"));
        }
        if self.dual {
            // The other options are those of the native lock.
            return Ok(());
        }
        if asked("prefix").is_some() {
            return Err(invalid("prefix belongs to the native dialect: write key-prefix"));
        }
        if asked("order").is_some_and(|order| order == "fifo") {
            return Err(invalid("only the native dialect keeps a line: leave order=fifo out"));
        }
        if !self.dialect.notifies() && asked("wait").is_some_and(|wait| wait == "pubsub") {
            return Err(invalid("in this dialect a release is not published: leave wait=pubsub out"));
        }
        self.lower();
        Ok(())
    }

    fn lower(&mut self) {
        self.order = QueueOrder::Unordered;
        if !self.dialect.notifies() {
            self.wait = Wait::Poll;
        }
    }
}
