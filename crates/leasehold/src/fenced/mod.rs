//! Resources that refuse a holder whose lock is lost.
//!
//! A fence is useful only if it is checked. Checking it only on writes still loses updates: an old holder
//! reads, is paused, a new one reads, the old one writes (no newer holder has written yet), the new one
//! writes over it. So a fenced resource is *opened* with the fence, which raises the fence of the resource
//! before the first read; from then on every older holder is refused, for reads and writes alike.
//!
//! | what is protected | checked by |
//! |---|---|
//! | something in this process | [`FenceGate`] |
//! | a file that the processes of one machine share | [`FencedFile`] |
//! | rows of PostgreSQL, MySQL or SQLite | [`FenceColumn`], in the statements themselves |
//! | a key of Redis | [`FencedRedis`], in a script |
//! | an object in a store with conditional writes | [`FencedObject`], by entity tag or generation |
//! | a service of your own behind HTTP | [`header`], and a gate in the service |
//! | keys of the etcd that also keeps the lock | `EtcdProof`, a condition for your own transaction |
//! | nodes of the ZooKeeper that also keeps the lock | `ZooKeeperProof`, a `check` for your own multi |
//!
//! The types of this module take the fence of a guard as it is, `guard.fence()`; if the store of the lock has none,
//! opening is refused with [`NoFence`]. The two proofs are in the root of the crate, and come from the guard:
//! `guard.proof().get()`.

mod column;
mod file;
#[cfg(test)]
mod fuzz;
mod gate;
pub mod header;
mod object;
mod redis;

use leasehold_core::Fence;

pub use column::{FenceColumn, InvalidColumn, Parameter, RowRefusal, SqlDialect, Statement};
pub use file::{FencedFile, FencedFileError};
pub use gate::{FenceGate, FencedAccess};
pub use object::{ConditionalPut, FencedObject, ObjectRefusal, ObjectState, ObjectTag};
pub use redis::{FencedRedis, FencedRedisError, RedisEval};

/// A refusal because a holder with a newer fence was here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "refused: a later holder (fence {seen}) has opened it after yours ({yours}); start again with a new lock"
)]
pub struct Stale {
    /// The fence that was presented.
    pub yours: Fence,
    /// The newest fence that the resource has seen.
    pub seen: Fence,
}

/// A refusal because the lock has no fence, so that an older holder could not be recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the lock has no fence, so an older holder could not be refused: use a store that has fences, and \
     require them with .require_fencing(FenceGrade::BestEffort) or better"
)]
pub struct NoFence;

/// The reason why a fence was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A newer holder was here.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// The lock has no fence to compare.
    #[error(transparent)]
    NoFence(#[from] NoFence),
}

/// Returns the fence that was presented, if there was one.
fn required(fence: impl Into<Option<Fence>>) -> Result<Fence, NoFence> {
    fence.into().ok_or(NoFence)
}

/// Checks that `yours` may continue if the newest fence is `seen`.
fn compare(yours: Fence, seen: Fence) -> Result<(), Stale> {
    if yours < seen { Err(Stale { yours, seen }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_without_fences_is_refused_with_advice() {
        let refusal = FenceGate::new(()).open(None).unwrap_err();
        assert_eq!(refusal, FenceError::NoFence(NoFence));
        assert!(refusal.to_string().contains(".require_fencing(FenceGrade::BestEffort)"), "{refusal}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        assert!(matches!(FencedFile::open(&path, None), Err(FencedFileError::NoFence(_))));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "and nothing is made");
    }
}
