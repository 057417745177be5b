//! A program on a store whose answers take longer than the requested lease.

use std::sync::Arc;

use simulated::layer::{Fault, Mode, Verb};
use tokio::time::timeout;

use super::{NEVER, aimed, client, store};
use crate::judge::Verdict;

/// Lets every grant come too late, and checks that the lock is not requested without end.
pub(crate) fn answers_take_longer_than_leases(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let ttl = dice.ms(200, 2_000);
        let wire = Arc::new(Fault::over(store()));
        wire.set(Verb::Contend, Mode::LateReply(ttl + dice.ms(1, 1_000)));
        let locks = client(wire);
        let asked = timeout(NEVER, locks.mutex("job").ttl(ttl).lock()).await;
        let locked = asked.as_ref().is_ok_and(|locked| locked.is_ok());
        (asked.is_err() || locked)
            .then(|| format!("late grants are asked for without end, or given: {asked:?}"))
    })
}
