//! The laws, a file for each group of them.
//!
//! Each law is an async function over a [`Trial`](crate::trial::Trial) that uses only names of its own,
//! so that all of them can run at once on one store. The list of them is in `list.rs`.
//!
//! | module | the promises that it checks |
//! |---|---|
//! | `profile` | the profile: shares, ttl, fences, notes, how a claim waits, and how long it is held |
//! | `safety` | what is held together fits the capacity: exclusion, readers, permits |
//! | `at_once` | what is decided on the thread of the caller counts like any other decision |
//! | `direct` | what is requested on the thread of the caller counts like any other request |
//! | `idempotence` | `contend`, `renew` and `release` may be repeated with the same claim |
//! | `adoption` | another client continues a granted claim |
//! | `renewal` | a renewal extends a lease, and never resurrects, shortens or grants one |
//! | `residue` | nothing is left of a wait that ended or was cancelled, and of a release |
//! | `patience` | a wait ends with its patience, and a grant within it is reported |
//! | `order` | fences rise; a queue is first come, first served; hints count the claims ahead |
//! | `own_only` | a release or a renewal affects its own claim only |
//! | `wake` | a release, or the end of a lease or of a place, wakes the waiters that fit |
//! | `view` | `inspect` and `list`: what is shown, and when a watcher of changes is answered |
//! | `processes` | several processes take turns, also if one of them is killed or stopped |
//! | `batch` | each claim of a batch gets its own answer |
//! | `registers` | values are whole, and change on a condition |
//! | `registers/concurrent.rs` | many clients write registers at once |
//! | `registers/time.rs` | waits for a change of a register, and values that end by themselves |

pub(crate) mod adoption;
pub(crate) mod at_once;
pub(crate) mod batch;
pub(crate) mod direct;
mod fast_path;
pub(crate) mod idempotence;
pub(crate) mod order;
pub(crate) mod own_only;
pub(crate) mod patience;
pub(crate) mod processes;
pub(crate) mod profile;
pub(crate) mod registers;
pub(crate) mod renewal;
pub(crate) mod residue;
pub(crate) mod safety;
pub(crate) mod view;
pub(crate) mod wake;
