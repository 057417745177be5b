//! The keepers of a script: `LEASEHOLD_KEEPER`.
//!
//! Ground rules: the variable only says where a keeper may be found, and for which lock; the keeper decides. The
//! text is made by `acquire`, and is good in a shell, in an environment and in JSON.

use leasehold::Resource;

use crate::exit::{Exit, Problem};
use crate::output::text::visible;
use crate::request::reentry::is_tag;
use crate::system::rendezvous::is_drawn;

/// The keepers that this process inherits, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keepers(Vec<KeeperAddress>);

/// A place where the keeper of a section is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeeperAddress {
    /// The name of its socket.
    pub(crate) socket: String,
    /// The ids of the processes for which it holds the lock. They only help to guess which keeper is meant.
    pub(crate) callers: Vec<i32>,
    /// The tags of the claims that it keeps; none if outer runs or sections hold all of its locks.
    pub(crate) tags: Vec<String>,
    pub(crate) lock: Resource,
}

impl Keepers {
    /// Returns those in the environment.
    pub(crate) fn inherited() -> Keepers {
        Keepers::read(&std::env::var(KEEPER_VARIABLE).unwrap_or_default())
    }

    fn read(text: &str) -> Keepers {
        let keepers = text.split(',').filter_map(|part| {
            let (head, lock) = part.trim().split_once('=')?;
            let mut tags = head.split(':');
            let mut callers = tags.next()?.split('.');
            let socket = callers.next()?.to_owned();
            let callers = callers.map(|caller| caller.parse().ok()).collect::<Option<Vec<i32>>>()?;
            let tags: Vec<_> = tags.map(str::to_owned).collect();
            let (lock, _) = url::form_urlencoded::parse(lock.as_bytes()).next()?;
            let lock = Resource::new(&lock).ok()?;
            (is_drawn(&socket) && tags.iter().all(|tag| is_tag(tag))).then_some(KeeperAddress {
                socket,
                callers,
                tags,
                lock,
            })
        });
        Keepers(keepers.collect())
    }

    /// Returns all of them.
    pub(crate) fn all(&self) -> &[KeeperAddress] {
        &self.0
    }

    /// Returns these keepers and one more.
    pub(crate) fn with(living: Vec<KeeperAddress>, keeper: KeeperAddress) -> Keepers {
        Keepers(living.into_iter().chain([keeper]).collect())
    }

    /// Finds the one that keeps the claim with this tag.
    pub(crate) fn keeping(&self, tag: &str) -> Option<&KeeperAddress> {
        self.0.iter().rev().find(|keeper| keeper.tags.iter().any(|kept| kept == tag))
    }

    /// Finds the keeper of a lock, or the only one that these callers have themselves. Those of the scripts around
    /// them are found by name only: a trap of an inner script must not release a lock of the outer one.
    ///
    /// # Errors
    /// Usage, if there is none, or if it is not clear which one is meant; lost, if the lock has none.
    pub(crate) fn find(&self, lock: Option<&Resource>, callers: &[i32]) -> Result<&KeeperAddress, Problem> {
        let Some(lock) = lock else {
            let is_own =
                |keeper: &&KeeperAddress| keeper.callers.iter().any(|caller| callers.contains(caller));
            let own: Vec<_> = self.0.iter().filter(is_own).collect();
            return match &*own {
                [] if self.0.is_empty() => Err(Problem::new(Exit::Usage, NONE)),
                [] => {
                    Err(Problem::new(Exit::Usage, "this script has no lock itself: name the one to release"))
                }
                [keeper] => Ok(keeper),
                several => {
                    let names: Vec<_> = several.iter().map(|keeper| visible(keeper.lock.as_str())).collect();
                    let text =
                        format!("several locks are held: name the one to release: {}", names.join(", "));
                    Err(Problem::new(Exit::Usage, text))
                }
            };
        };
        match self.0.iter().rev().find(|keeper| keeper.lock == *lock) {
            Some(keeper) => Ok(keeper),
            None if self.0.is_empty() => Err(Problem::new(Exit::Usage, NONE)),
            None => {
                let text = format!("{KEEPER_VARIABLE} has no keeper of {}", visible(lock.as_str()));
                Err(Problem::new(Exit::Usage, text))
            }
        }
    }
}

impl std::fmt::Display for Keepers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, KeeperAddress { socket, callers, tags, lock }) in self.0.iter().enumerate() {
            let callers: String = callers.iter().map(|caller| format!(".{caller}")).collect();
            let tags: String = tags.iter().map(|tag| format!(":{tag}")).collect();
            let lock: String = url::form_urlencoded::byte_serialize(lock.as_str().as_bytes()).collect();
            write!(f, "{}{socket}{callers}{tags}={lock}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The variable that says where the keepers are.
pub(crate) const KEEPER_VARIABLE: &str = "LEASEHOLD_KEEPER";
const NONE: &str = "LEASEHOLD_KEEPER is not set: no `leasehold acquire` of this script holds a lock, or its output was not \
                    evaluated; see `leasehold acquire --help`";

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(digit: &str, lock: &str) -> KeeperAddress {
        let (socket, tags) = (digit.repeat(32), vec![digit.repeat(32), "0".repeat(32)]);
        KeeperAddress { socket, callers: vec![7, 6], tags, lock: Resource::new(lock).unwrap() }
    }

    #[test]
    fn text_of_keepers_reads_back_and_nonsense_is_left_out() {
        let without_tags = KeeperAddress { tags: Vec::new(), ..keeper("b", "x") };
        let all = Keepers(vec![keeper("a", "a=b, c&d+%"), without_tags]);
        assert_eq!(Keepers::read(&all.to_string()), all);
        let nonsense = "x=y,{},=,.=,{}.z=a,{}.7:x=a,".replace("{}", &"a".repeat(32));
        assert_eq!(Keepers::read(&format!("{nonsense}{all}")), all);
        assert!(!all.to_string().contains(['\'', ' ', '"']), "{all}");
    }

    #[test]
    fn keeper_is_found_by_its_lock_or_if_it_is_the_only_one() {
        let of = |digit: &str, callers: &[i32], lock| KeeperAddress {
            callers: callers.to_vec(),
            ..keeper(digit, lock)
        };
        let (one, other, newer) = (of("a", &[6, 7], "x"), of("b", &[7], "y"), of("c", &[8], "x"));
        let (x, y) = (Resource::new("x").unwrap(), Resource::new("y").unwrap());
        let all = Keepers(vec![one.clone(), other, newer.clone()]);
        assert_eq!(all.find(Some(&x), &[]).unwrap(), &newer);
        assert_eq!(all.find(None, &[9, 8]).unwrap(), &newer, "the only one of the inner script");
        assert_eq!(all.find(None, &[6]).unwrap(), &one, "a subshell that has outlived its script");
        assert!(all.find(None, &[7]).unwrap_err().to_string().ends_with("x, y"));
        let only = Keepers::with(Vec::new(), one.clone());
        // A trap of an inner script must not end the section of the outer one.
        let error = only.find(None, &[9]).unwrap_err();
        assert!(error.to_string().contains("name the one to release"), "{error}");
        assert_eq!(only.find(Some(&one.lock), &[9]).unwrap(), &one);
        for keepers in [Keepers::default(), only] {
            assert_eq!(keepers.find(Some(&y), &[]).unwrap_err().exit, Exit::Usage);
        }
    }

    #[test]
    fn keeper_of_a_claim_is_found_by_its_tag() {
        let all = Keepers(vec![keeper("a", "x"), keeper("b", "x")]);
        assert_eq!(all.keeping(&"a".repeat(32)), Some(&all.0[0]));
        assert_eq!(all.keeping(&"c".repeat(32)), None);
    }
}
