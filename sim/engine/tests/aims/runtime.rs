//! Programs in which the runtime of a client ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use simulated::{Client, ErrorKind, Event, EventSubscriber, Note, TokioClock};
use tokio::time::{sleep, timeout};

use super::{NEVER, client, paused, store};
use crate::dice::Dice;
use crate::judge::Verdict;

type Call = Pin<Box<dyn Future<Output = Result<(), simulated::Error>> + Send>>;

/// Ends a client's runtime: each wait for the client in another runtime returns then, and later
/// requests are refused.
pub(crate) fn a_runtime_ends(seed: u64, mutant: &'static str) -> Verdict {
    simulated::probe::begin(seed, mutant);
    let dice = Dice::new(seed);
    let (home, abroad) = (paused(), paused());
    let entered = home.enter();
    let locks = client(store());
    drop(entered);
    let call = |kind: u64| -> Call {
        let mutex = locks.mutex("job");
        match kind {
            0 => Box::pin(async move { mutex.lock().await?.release().await }),
            1 => Box::pin(async move { mutex.try_lock().await.map(drop) }),
            2 => Box::pin(async move {
                let guard = mutex.lock().await?;
                guard.lost().await;
                Ok(())
            }),
            _ => Box::pin(async move { mutex.inspect().await.map(drop) }),
        }
    };
    let before: Vec<_> = (0..dice.between(1, 5)).map(|_| dice.below(4)).collect();
    let after: Vec<_> = (0..dice.between(1, 3)).map(|_| dice.below(4)).collect();
    let tasks = before.iter().map(|kind| (*kind, abroad.spawn(call(*kind))));
    let mut tasks: Vec<_> = tasks.collect();
    for _ in 0..dice.below(6) {
        home.block_on(async { sleep(dice.ms(0, 20)).await });
        abroad.block_on(async { sleep(dice.ms(0, 20)).await });
    }
    drop(home);
    tasks.extend(after.iter().map(|kind| (*kind + 10, abroad.spawn(call(*kind)))));
    let failure = abroad.block_on(async {
        for (kind, task) in tasks {
            let Ok(Ok(ended)) = timeout(NEVER, task).await else {
                return Some(format!("call {kind} does not come back, although its runtime ended"));
            };
            let is_closed = |error: &simulated::Error| error.kind() == ErrorKind::Closed;
            if kind >= 10 && !ended.as_ref().is_err_and(is_closed) {
                return Some(format!("call {kind} comes back with {ended:?} although its runtime had ended"));
            }
        }
        None
    });
    Verdict { failure, ..Verdict::default() }
}

/// A subscriber that notes a loss.
#[derive(Debug, Default)]
struct Losses(AtomicBool);

impl EventSubscriber for Losses {
    fn on_event(&self, event: &Event<'_>) {
        self.0.fetch_or(matches!(event, Event::Lost { .. }), Ordering::SeqCst);
    }
}

/// Ends a runtime just after a lock was released in it, at any time of its lease.
pub(crate) fn a_runtime_ends_after_a_release(seed: u64, mutant: &'static str) -> Verdict {
    simulated::probe::begin(seed, mutant);
    let (dice, losses) = (Dice::new(seed), Arc::<Losses>::default());
    let home = paused();
    let locks = home.block_on(async {
        let builder = Client::builder().clock(Arc::new(TokioClock::new())).note(Note::default());
        let locks = builder.subscriber(losses.clone()).over(store()).expect("a client");
        let guard = locks.mutex("job").ttl(dice.ms(200, 2_000)).lock().await.expect("it is free");
        sleep(dice.ms(0, 2_000)).await;
        guard.release().await.expect("it is held");
        locks
    });
    drop(home);
    drop(locks);
    let failure = losses.0.load(Ordering::SeqCst).then(|| "a lock that was released is lost".to_owned());
    Verdict { failure, ..Verdict::default() }
}
