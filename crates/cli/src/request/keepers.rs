//! The keepers of a script: `LEASEHOLD_KEEPER`.
//!
//! Ground rules: the variable only says where a keeper may be found, and for which lock; the keeper decides. The
//! text is made by `acquire`, and is good in a shell, in an environment and in JSON.

use leasehold::Resource;

use crate::exit::{Exit, Problem};
use crate::output::text::visible_name;
use crate::request::reentry::is_tag;
use crate::system::keeper_socket::SocketAddress;

/// The keepers that this process inherits, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keepers(Vec<KeeperAddress>);

/// The address of the keeper of a section, with what it keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeeperAddress {
    pub(crate) socket: SocketAddress,
    /// The ids of the processes for which it holds the lock. They only help to guess which keeper is meant.
    pub(crate) callers: Vec<i32>,
    /// The tags of the claims that it keeps; none if outer runs or sections hold all of its locks.
    pub(crate) tags: Vec<String>,
    pub(crate) lock: Resource,
}

impl Keepers {
    /// Returns the keepers in the environment.
    pub(crate) fn inherited() -> Keepers {
        Keepers::read(&std::env::var(KEEPER_VARIABLE).unwrap_or_default())
    }

    pub(crate) fn read(text: &str) -> Keepers {
        let keepers = text.split(',').filter_map(|part| {
            let (head, lock) = part.trim().split_once('=')?;
            let mut tags = head.split(':');
            let mut callers = tags.next()?.split('.');
            let socket = callers.next()?.parse().ok()?;
            let callers = callers.map(|caller| caller.parse().ok()).collect::<Option<Vec<i32>>>()?;
            let tags: Vec<_> = tags.map(str::to_owned).collect();
            let (lock, _) = url::form_urlencoded::parse(lock.as_bytes()).next()?;
            let lock = Resource::new(&lock).ok()?;
            let is_whole = tags.iter().all(|tag| is_tag(tag));
            is_whole.then_some(KeeperAddress { socket, callers, tags, lock })
        });
        Keepers(keepers.collect())
    }

    /// Returns all of them.
    pub(crate) fn all(&self) -> &[KeeperAddress] {
        &self.0
    }

    /// Returns the list of these keepers.
    pub(crate) fn new(keepers: Vec<KeeperAddress>) -> Keepers {
        Keepers(keepers)
    }

    /// Returns these keepers and one more.
    pub(crate) fn and(mut self, keeper: KeeperAddress) -> Keepers {
        self.0.push(keeper);
        self
    }

    /// Finds the one that keeps the claim with this tag.
    pub(crate) fn keeping(&self, tag: &str) -> Option<&KeeperAddress> {
        self.0.iter().rev().find(|keeper| keeper.tags.iter().any(|kept| kept == tag))
    }

    /// Finds the keepers of a lock, or, without a name, those that these callers have themselves, the newest first.
    /// Of one name, those of the callers come before all others: what ends an inner script must not release a lock of
    /// the outer one.
    ///
    /// # Errors
    /// Usage, if there is none.
    pub(crate) fn meant(
        &self,
        lock: Option<&Resource>,
        callers: &[i32],
    ) -> Result<Vec<&KeeperAddress>, Problem> {
        let is_own = |keeper: &&KeeperAddress| keeper.callers.iter().any(|caller| callers.contains(caller));
        let of_name = self.0.iter().rev().filter(|keeper| lock.is_none_or(|lock| keeper.lock == *lock));
        let (own, others): (Vec<_>, Vec<_>) = of_name.partition(is_own);
        match lock {
            _ if !own.is_empty() => Ok(own),
            Some(_) if !others.is_empty() => Ok(others),
            _ if self.0.is_empty() => Err(Problem::new(Exit::Usage, NONE)),
            None => Err(Problem::new(Exit::Usage, "this script has no lock itself: name the one to release")),
            Some(lock) => {
                let text = format!("{KEEPER_VARIABLE} has no keeper of {}", visible_name(lock.as_str()));
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
        let (socket, tags) = (SocketAddress::here(digit.repeat(32)), vec![digit.repeat(32), "0".repeat(32)]);
        KeeperAddress { socket, callers: vec![7, 6], tags, lock: Resource::new(lock).unwrap() }
    }

    #[test]
    fn text_of_keepers_reads_back_and_nonsense_is_left_out() {
        let without_tags = KeeperAddress { tags: Vec::new(), ..keeper("b", "x") };
        let all = Keepers(vec![keeper("a", "a=b, c&d+%"), without_tags]);
        assert_eq!(Keepers::read(&all.to_string()), all);
        let socket = all.0[0].socket.to_string();
        let nonsense = "x=y,{},=,.=,{}.z=a,{}.7:x=a,{}x=a,".replace("{}", &socket);
        assert_eq!(Keepers::read(&format!("{nonsense}{all}")), all);
        assert!(!all.to_string().contains(['\'', ' ', '"']), "{all}");
    }

    #[test]
    fn keepers_are_found_by_their_lock_or_by_their_callers() {
        let of = |digit: &str, callers: &[i32], lock| KeeperAddress {
            callers: callers.to_vec(),
            ..keeper(digit, lock)
        };
        let (one, other, newer) = (of("a", &[6, 7], "x"), of("b", &[7], "y"), of("c", &[8], "x"));
        let (x, y) = (Resource::new("x").unwrap(), Resource::new("y").unwrap());
        let all = Keepers(vec![one.clone(), other.clone(), newer.clone()]);
        assert_eq!(all.meant(Some(&x), &[]).unwrap(), [&newer, &one]);
        assert_eq!(all.meant(Some(&x), &[7]).unwrap(), [&one], "the script's own before all others");
        assert_eq!(all.meant(None, &[9, 8]).unwrap(), [&newer], "the only one of the inner script");
        assert_eq!(all.meant(None, &[6]).unwrap(), [&one], "a subshell that has outlived its script");
        assert_eq!(all.meant(None, &[7]).unwrap(), [&other, &one]);
        let only = Keepers::new(vec![one.clone()]);
        // A trap of an inner script must not end the section of the outer one.
        let error = only.meant(None, &[9]).unwrap_err();
        assert!(error.to_string().contains("name the one to release"), "{error}");
        assert_eq!(only.meant(Some(&one.lock), &[9]).unwrap(), [&one]);
        for keepers in [Keepers::default(), only] {
            assert_eq!(keepers.meant(Some(&y), &[]).unwrap_err().exit, Exit::Usage);
        }
    }

    #[test]
    fn keeper_of_a_claim_is_found_by_its_tag() {
        let all = Keepers(vec![keeper("a", "x"), keeper("b", "x")]);
        assert_eq!(all.keeping(&"a".repeat(32)), Some(&all.0[0]));
        assert_eq!(all.keeping(&"c".repeat(32)), None);
    }
}
