//! Programs that aim at one promise, where random ones come to it seldom or never.

mod linger;
mod order;
mod parts;
mod runtime;
mod slow;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use simulated::local::MemoryBackend;
use simulated::{Client, TokioClock, probe};

pub(crate) use linger::{
    a_waiter_behind_the_use_of_what_lingered, a_waiter_on_a_store_without_a_queue,
    an_owner_returns_to_what_is_kept, doubt_about_a_lingering_claim, limited_uses_of_what_lingers,
    tries_beside_an_unused_permit, tries_while_nobody_uses_it,
};
pub(crate) use order::{
    a_claim_of_a_reader_that_left, a_read_behind_a_refused_writer, a_task_locks_in_a_loop,
    an_upgrade_without_a_timely_answer, readers_behind_a_writer, the_next_behind_a_handoff,
    tries_behind_a_waiter,
};
pub(crate) use parts::{one_part_hangs_in_releases, one_part_hangs_in_renewals};
pub(crate) use runtime::{a_runtime_ends, a_runtime_ends_after_a_release};
pub(crate) use slow::answers_take_longer_than_leases;

use crate::dice::Dice;
use crate::judge::Verdict;

/// The finding of a program, if it found something.
type Found = Option<String>;

/// Runs one program on a runtime of its own.
fn aimed<F: Future<Output = Found>>(
    seed: u64,
    mutant: &'static str,
    play: impl FnOnce(Dice) -> F,
) -> Verdict {
    probe::begin(seed, mutant);
    let failure = paused().block_on(play(Dice::new(seed)));
    Verdict { failure, ..Verdict::default() }
}

fn paused() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime")
}

fn store() -> Arc<MemoryBackend> {
    Arc::new(MemoryBackend::with_clock(Arc::new(TokioClock::new())))
}

fn client(backend: Arc<dyn simulated::backend::Backend>) -> Client {
    let builder = Client::builder().clock(Arc::new(TokioClock::new()));
    builder.note(simulated::Note::default()).over(backend).expect("a client")
}

/// More than anything takes that ends.
const NEVER: Duration = Duration::from_secs(600);
