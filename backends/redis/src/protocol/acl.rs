//! Which rights a user of the server needs, by how it is used.
//!
//! One place, so that the documentation, the failures and the tests that log in with them say the same.

use crate::config::{Dialect, RedisConfig, Wait};
use crate::protocol::error::ACL_RULES;

impl RedisConfig {
    /// Returns the rules of an ACL user of one server that suffice for these locks, to be pasted behind
    /// `ACL SETUSER name on >password`.
    ///
    /// Without `+info` and `+config|get` the profile assumes the weaker, `+scan` is for listings,
    /// `+select` for another database than 0. With `dialect=dual:…` they are those of both locks.
    ///
    /// ```
    /// use leasehold_redis::RedisConfig;
    /// let rules = RedisConfig::parse("redis://db1?dialect=plain&key-prefix=jobs:").unwrap().acl_rules();
    /// assert!(rules.starts_with("resetkeys ~jobs:* resetchannels -@all +ping"));
    /// ```
    pub fn acl_rules(&self) -> String {
        match self.dual() {
            None => self.rights().rules(),
            Some((old, new)) => {
                let (mut both, old) = (new.rights(), old.rights());
                both.keys.extend(old.keys);
                both.channels.extend(old.channels);
                let more = old.commands.into_iter().filter(|command| !both.commands.contains(command));
                let more: Vec<String> = more.collect();
                both.commands.extend(more);
                both.rules()
            }
        }
    }

    fn rights(&self) -> Rights {
        let uses_pubsub = self.wait == Wait::Pubsub;
        let keys = &self.key_prefix;
        let (keys, channels, commands) = match self.dialect {
            Dialect::Native => return Rights::native(&self.prefix, uses_pubsub),
            Dialect::Plain => (vec![format!("{keys}*")], Vec::new(), String::new()),
            Dialect::PythonRedisLock => (
                vec![format!("lock:{keys}*"), format!("lock-signal:{keys}*")],
                Vec::new(),
                "+lpush".to_owned(),
            ),
            Dialect::Redisson => (
                match keys.as_str() {
                    "" => vec!["*".to_owned()],
                    _ => {
                        let extra = ["redisson_lock_token:*", "leasehold_claims:*"].map(str::to_owned);
                        [format!("{keys}*"), format!("{{{keys}*")].into_iter().chain(extra).collect()
                    }
                },
                vec!["redisson_lock__channel:*".to_owned(), "redisson_rwlock:*".to_owned()],
                // A client that only polls notifies others, too.
                format!("{HASH}{}", if uses_pubsub { " +subscribe +unsubscribe" } else { "" }),
            ),
        };
        Rights { keys, channels, commands: split(&format!("{COMMON} {commands} {OPTIONAL}")) }
    }
}

/// The permissions of an ACL user.
struct Rights {
    keys: Vec<String>,
    channels: Vec<String>,
    commands: Vec<String>,
}

impl Rights {
    /// Returns those of the native dialect.
    fn native(prefix: &str, uses_pubsub: bool) -> Rights {
        let name = format!("{{{prefix}:*");
        let commands = split(ACL_RULES).into_iter().filter(|command| command.starts_with('+'));
        let commands =
            commands.filter(|command| uses_pubsub || !PUBSUB.contains(&command.as_str())).collect();
        Rights {
            keys: vec![name.clone()],
            channels: if uses_pubsub { vec![name] } else { Vec::new() },
            commands,
        }
    }

    fn rules(&self) -> String {
        let keys = self.keys.iter().map(|key| format!(" ~{key}")).collect::<String>();
        let channels = self.channels.iter().map(|channel| format!(" &{channel}")).collect::<String>();
        format!("resetkeys{keys} resetchannels{channels} -@all {}", self.commands.join(" "))
    }
}

/// The permissions that every dialect needs.
const COMMON: &str = "+ping +eval +evalsha +get +set +del +pttl +pexpire +hdel";
const HASH: &str = "+hgetall +hget +hset +incr +publish";
const OPTIONAL: &str = "+select +scan +info +config|get";
const PUBSUB: [&str; 3] = ["+publish", "+subscribe", "+unsubscribe"];

fn split(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(url: &str) -> String {
        RedisConfig::parse(url).unwrap().acl_rules()
    }

    #[test]
    fn the_native_rules_are_those_of_the_failures() {
        assert_eq!(rules("redis://h"), ACL_RULES);
        let polling = rules("redis://h?wait=poll&prefix=app");
        assert!(polling.starts_with("resetkeys ~{app:* resetchannels -@all +ping"), "{polling}");
        assert!(!polling.contains("publish") && !polling.contains("subscribe"), "{polling}");
    }

    #[test]
    fn the_documentation_has_each_line() {
        let docs = include_str!("../docs.md");
        for options in ["", "?wait=poll", "?dialect=plain", "?dialect=python-redis-lock", "?dialect=redisson"]
        {
            let line = format!("ACL SETUSER jobs on >secret {}", rules(&format!("redis://h{options}")));
            assert!(docs.lines().any(|documented| documented == line), "{options}: {line}");
        }
    }

    #[test]
    fn both_locks_need_the_rights_of_both() {
        let both = rules("redis://h?dialect=dual:python-redis-lock");
        for part in ["~{lh:*", "~lock:*", "~lock-signal:*", "+zadd", "+lpush", "+subscribe"] {
            assert!(both.contains(part), "{part}: {both}");
        }
        assert_eq!(both.matches("+evalsha").count(), 1);
    }
}
