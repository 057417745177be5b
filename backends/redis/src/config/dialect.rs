//! The dialects, the part of a URL that names one, and their limits on the rest of the URL.

use std::time::Duration;

use leasehold_backend::url::{Options, UrlOption};
use leasehold_core::{Failure, QueueOrder};

use super::{RedisConfig, Wait, invalid};

/// The library whose form of a lock is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// The dialect of leasehold.
    #[default]
    Native,
    /// A string that is set if it does not exist.
    Plain,
    /// A hash of owners.
    Redisson,
    /// A string, and a list that wakes.
    PythonRedisLock,
}

/// The dialect, and whether the native lock is taken as well.
pub(crate) const DIALECT: UrlOption<(Dialect, bool)> = UrlOption::choice(
    "dialect",
    &[
        ("native", (Dialect::Native, false)),
        ("plain", (Dialect::Plain, false)),
        ("redisson", (Dialect::Redisson, false)),
        ("python-redis-lock", (Dialect::PythonRedisLock, false)),
        ("dual:plain", (Dialect::Plain, true)),
        ("dual:redisson", (Dialect::Redisson, true)),
        ("dual:python-redis-lock", (Dialect::PythonRedisLock, true)),
    ],
)
.about("the library in whose form locks are written; with `dual:` that lock and the native one are acquired together")
.default("native");

pub(crate) const KEY_PREFIX: UrlOption<String> = UrlOption::text("key-prefix", 128)
    .about("beginning of the key in another dialect, before the name")
    .example("lock:")
    .hint("for the native dialect write prefix")
    .only_with(&[(
        "dialect",
        &["plain", "redisson", "python-redis-lock", "dual:plain", "dual:redisson", "dual:python-redis-lock"],
    )]);

pub(crate) const WATCHDOG: UrlOption<Duration> =
    UrlOption::duration("watchdog", Duration::from_secs(1), Duration::from_secs(24 * 3600))
        .about("the `lockWatchdogTimeout` of the Java processes, which is the longest ttl of a reader here")
        .default("30s")
        .only_with(&[("dialect", &["redisson", "dual:redisson"])]);

impl Dialect {
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

    /// Refuses every dialect but the native one.
    pub(crate) fn must_be_native(&self) -> Result<(), Failure> {
        if self.dialect == Dialect::Native && !self.dual {
            return Ok(());
        }
        Err(invalid("this backend speaks the native dialect only: open the URL by leasehold_redis::connect"))
    }

    /// Lowers what the dialect does not have, and refuses what was asked for and is lowered by it.
    pub(crate) fn fit_dialect(&mut self, options: &Options) -> Result<(), Failure> {
        if self.dialect == Dialect::Native || self.dual {
            // The options of a dual are those of the native lock.
            return Ok(());
        }
        if options.has("prefix") {
            return Err(invalid("prefix belongs to the native dialect: write key-prefix"));
        }
        if options.has("order") && self.order == QueueOrder::Fifo {
            return Err(invalid("only the native dialect keeps a queue: leave order=fifo out"));
        }
        if !self.dialect.notifies() && options.has("wait") && self.wait == Wait::Pubsub {
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
