//! The commands, one file each; `keep` is the side of `acquire` that runs in the keeper.

pub(crate) mod acquire;
pub(crate) mod break_claim;
pub(crate) mod deadlocks;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod fence;
pub(crate) mod keep;
pub(crate) mod list;
pub(crate) mod man;
pub(crate) mod redlock;
pub(crate) mod release;
pub(crate) mod revoke;
pub(crate) mod run;
pub(crate) mod schema;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod sweep;
#[cfg(feature = "top")]
pub(crate) mod top;
#[cfg(feature = "torture")]
pub(crate) mod torture;
pub(crate) mod watch;
