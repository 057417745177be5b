//! The formats in which other libraries store locks, so that their users contend for the same ones.
//!
//! Ground rules: the native dialect promises most, so nothing here lowers it. A dialect consists of names,
//! scripts and a profile, in a file of its own; the code that speaks it over a connection is written
//! once, in `script_backend.rs`. A key that exists under a name and is not a lock of the dialect is reported
//! and left as it is.

pub(crate) mod reading;
mod redisson;
mod script_backend;
mod scripts;
mod text;

use std::fmt::Debug;
use std::sync::Arc;

use leasehold_core::{Backend, Claim, Failure, Profile, Resource};

use crate::backend::RedisBackend;
use crate::config::{Dialect, RedisConfig, invalid};
use crate::net::request::Request;

/// Opens what `config` names, in the dialect that it names.
///
/// # Errors
/// As [`RedisBackend::connect`]; `Invalid` where it names two that are to be held together.
pub async fn connect(mut config: RedisConfig) -> Result<Arc<dyn Backend>, Failure> {
    if config.dual {
        return Err(invalid(
            "dialect=dual: is two locks: open it through leasehold, which holds them as one",
        ));
    }
    let rules = config.acl_rules();
    let dialect = std::mem::take(&mut config.dialect);
    let (key_prefix, watchdog) = (config.key_prefix.clone(), config.watchdog);
    let native = RedisBackend::connect(config).await?;
    let scope = native.scope;
    Ok(match dialect {
        Dialect::Native => Arc::new(native),
        Dialect::Plain => {
            Arc::new(script_backend::ScriptBackend::new(native, text::Text::plain(key_prefix), rules))
        }
        Dialect::PythonRedisLock => Arc::new(script_backend::ScriptBackend::new(
            native,
            text::Text::python_redis_lock(key_prefix),
            rules,
        )),
        Dialect::Redisson => Arc::new(script_backend::ScriptBackend::new(
            native,
            redisson::Redisson::new(key_prefix, watchdog, scope),
            rules,
        )),
    })
}

/// The part that differs from dialect to dialect.
pub(crate) trait ScriptDialect: Debug + Send + Sync + 'static {
    /// Returns what the dialect promises over a connection of which the native dialect promises `native`.
    fn profile(&self, native: Profile) -> Profile;

    /// Refuses a claim that it cannot store although its profile admits it.
    ///
    /// # Errors
    /// `Invalid`, with what to do.
    fn check(&self, _: &Claim) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns the key that is the lock of this name.
    fn key(&self, name: &str) -> String;

    /// Returns the lock that has this key.
    fn resource(&self, key: &str) -> Option<Resource>;

    /// Returns the type of key that a lock is.
    fn kind(&self) -> &'static str;

    /// Returns the channel on which a release of what this claim waits for is announced; `None` without
    /// one.
    fn channel(&self, claim: &Claim) -> Option<String>;

    /// Asks for the lock once: answers as `reading::contend_reply` reads it.
    fn contend(&self, claim: &Claim) -> Request;

    /// Keeps the lease of a claim: answers 1, or 0 where the claim is gone.
    fn renew(&self, claim: &Claim) -> Request;

    /// Ends a claim: answers 1, or 0 where the claim was gone.
    fn release(&self, claim: &Claim) -> Request;

    /// Looks at a lock: answers as `reading::snapshot` reads it.
    fn inspect(&self, resource: &Resource) -> Request;

    /// Returns the advice about a key of another type.
    fn foreign(&self) -> &'static str;
}
