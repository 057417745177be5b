//! The keepers of a script: `LEASEHOLD_KEEPER`.
//!
//! Ground rules: the variable only says where a keeper may be found, and for which lock; the keeper decides. The
//! text is made by `acquire`, and is good in a shell, in an environment and in JSON.

use leasehold::Resource;

use crate::exit::{Exit, Problem};
use crate::output::text::visible;
use crate::system::rendezvous::is_drawn;

/// The keepers that this process inherits, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keepers(Vec<KeeperAddress>);

/// A place where the keeper of a section is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeeperAddress {
    /// The name of its socket.
    pub(crate) socket: String,
    /// The id of the process for which it holds the lock. It only helps to guess which keeper is meant.
    pub(crate) caller: i32,
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
            let (socket, caller) = head.split_once('.')?;
            let caller = caller.parse().ok()?;
            let (lock, _) = url::form_urlencoded::parse(lock.as_bytes()).next()?;
            let lock = Resource::new(&lock).ok()?;
            is_drawn(socket).then(|| KeeperAddress { socket: socket.to_owned(), caller, lock })
        });
        Keepers(keepers.collect())
    }

    /// Leaves out those that have ended, and adds one.
    pub(crate) fn with(
        mut self,
        keeper: KeeperAddress,
        is_alive: impl Fn(&KeeperAddress) -> bool,
    ) -> Keepers {
        self.0.retain(is_alive);
        self.0.push(keeper);
        self
    }

    /// Finds the keeper of a lock, or the only one that this caller has itself. Those of the scripts around it are
    /// found by name only: a trap of an inner script must not release a lock of the outer one.
    ///
    /// # Errors
    /// Usage, if there is none, or if it is not clear which one is meant; lost, if the lock has none.
    pub(crate) fn find(
        &self,
        lock: Option<&Resource>,
        caller: Option<i32>,
    ) -> Result<&KeeperAddress, Problem> {
        let Some(lock) = lock else {
            let own: Vec<_> = self.0.iter().filter(|keeper| Some(keeper.caller) == caller).collect();
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
        for (at, KeeperAddress { socket, caller, lock }) in self.0.iter().enumerate() {
            let lock: String = url::form_urlencoded::byte_serialize(lock.as_str().as_bytes()).collect();
            write!(f, "{}{socket}.{caller}={lock}", if at == 0 { "" } else { "," })?;
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
        KeeperAddress { socket: digit.repeat(32), caller: 7, lock: Resource::new(lock).unwrap() }
    }

    #[test]
    fn text_of_keepers_reads_back_and_nonsense_is_left_out() {
        let all = Keepers(vec![keeper("a", "a=b, c&d+%"), keeper("b", "x")]);
        assert_eq!(Keepers::read(&all.to_string()), all);
        assert_eq!(Keepers::read(&format!("x=y,{},=,.=,{0}.z=a,{all}", "a".repeat(32))), all);
        assert!(!all.to_string().contains(['\'', ' ', '"']), "{all}");
    }

    #[test]
    fn keeper_is_found_by_its_lock_or_if_it_is_the_only_one() {
        let of = |digit: &str, caller, lock| KeeperAddress { caller, ..keeper(digit, lock) };
        let (one, other, newer) = (of("a", 7, "x"), of("b", 7, "y"), of("c", 8, "x"));
        let (x, y) = (Resource::new("x").unwrap(), Resource::new("y").unwrap());
        let all = Keepers(vec![one.clone()]).with(other, |_| true).with(newer.clone(), |_| true);
        assert_eq!(all.find(Some(&x), None).unwrap(), &newer);
        assert_eq!(all.find(None, Some(8)).unwrap(), &newer, "the only one of the inner script");
        assert!(all.find(None, Some(7)).unwrap_err().to_string().ends_with("x, y"));
        let only = all.with(one.clone(), |_| false);
        // A trap of an inner script must not end the section of the outer one.
        let error = only.find(None, Some(9)).unwrap_err();
        assert!(error.to_string().contains("name the one to release"), "{error}");
        assert_eq!(only.find(Some(&one.lock), Some(9)).unwrap(), &one);
        for keepers in [Keepers::default(), only] {
            assert_eq!(keepers.find(Some(&y), None).unwrap_err().exit, Exit::Usage);
        }
    }
}
