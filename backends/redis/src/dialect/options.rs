//! What a URL says about the dialect, and what the dialect says about the rest of the URL.

use leasehold_core::{Failure, Order};
use url::Url;

use super::Dialect;
use crate::config::{RedisConfig, Wait, invalid};

impl Dialect {
    /// All of them, as a URL names them.
    const NAMES: &[(&str, Dialect)] = &[
        ("native", Dialect::Native),
        ("plain", Dialect::Plain),
        ("redisson", Dialect::Redisson),
        ("python-redis-lock", Dialect::PythonRedisLock),
    ];

    /// Reads what a URL says.
    pub(crate) fn read(name: &str) -> Result<Dialect, Failure> {
        let known = Dialect::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, dialect)| *dialect).ok_or_else(|| {
            let names: Vec<&str> = Dialect::NAMES.iter().map(|(name, _)| *name).collect();
            invalid(format!("dialect={name}: known are {}", names.join(", ")))
        })
    }

    /// Whether a release is told to those who wait.
    fn notifies(self) -> bool {
        matches!(self, Dialect::Native | Dialect::Redisson)
    }
}

impl RedisConfig {
    /// Refuses every dialect but leasehold's own.
    pub(crate) fn must_be_native(&self) -> Result<(), Failure> {
        if self.dialect == Dialect::Native {
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
        if asked("prefix").is_some() {
            return Err(invalid("prefix belongs to the native dialect: write key-prefix"));
        }
        if self.key_prefix.len() > 128 || self.key_prefix.chars().any(char::is_control) {
            return Err(invalid("key-prefix: write at most 128 bytes without control characters"));
        }
        if asked("order").is_some_and(|order| order == "fifo") {
            return Err(invalid("only the native dialect keeps a line: leave order=fifo out"));
        }
        if !self.dialect.notifies() && asked("wait").is_some_and(|wait| wait == "pubsub") {
            return Err(invalid("in this dialect a release is not published: leave wait=pubsub out"));
        }
        self.order = Order::Unordered;
        if !self.dialect.notifies() {
            self.wait = Wait::Poll;
        }
        Ok(())
    }
}
