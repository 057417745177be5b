//! The way of a session to the table of holders, which another program may have locked.
//!
//! Ground rules: a statement that waits delays all that follow on its connection, also the signs of life, and all
//! locks of the session end with those. So each statement waits briefly, few are under way at a time, and once one
//! of them has found the table locked, none is sent for a while.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::error::Refusal;

/// The gate that the statements of one session pass.
#[derive(Debug)]
pub(super) struct TableGate {
    permits: Semaphore,
    /// When a statement was last refused, because it had waited for too long.
    refused_at: Mutex<Option<Instant>>,
}

impl TableGate {
    pub(super) fn new() -> TableGate {
        TableGate { permits: Semaphore::new(UNDER_WAY_MAX), refused_at: Mutex::default() }
    }

    /// Sends a statement that uses the table.
    ///
    /// # Errors
    /// `LostRace` where the table is locked, also if the statement was not sent for that reason.
    pub(super) async fn pass<T>(
        &self,
        statement: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        // It is never closed.
        let _permit = self.permits.acquire().await;
        if self.refused_at().is_some_and(|refused_at| refused_at.elapsed() < LEFT_ALONE) {
            return Err(Refusal::LostRace);
        }
        let answer = statement.await;
        if matches!(answer, Err(Refusal::LostRace)) {
            *self.refused_at() = Some(Instant::now());
        }
        answer
    }

    fn refused_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.refused_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns for how long a statement may wait for the table, where one may take so long: all that are under way take
/// less together.
pub(super) fn table_wait(limit: Duration) -> Duration {
    (limit / 40).clamp(Duration::from_millis(1), Duration::from_millis(100))
}

/// Statements under way at a time.
const UNDER_WAY_MAX: usize = 16;
/// The time for which a table that was found locked is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_under_way_wait_for_less_than_one_may_take() {
        for limit in [Duration::from_millis(100), Duration::from_secs(2), Duration::from_secs(60)] {
            let all = table_wait(limit) * u32::try_from(UNDER_WAY_MAX).unwrap();
            assert!(all <= limit / 2, "{all:?} of {limit:?}");
        }
    }

    #[tokio::test]
    async fn no_statement_is_sent_to_a_table_that_was_just_found_locked() {
        let gate = TableGate::new();
        assert_eq!(gate.pass(async { Ok(1) }).await.unwrap(), 1);
        assert!(gate.pass(async { Err::<(), _>(Refusal::LostRace) }).await.is_err());
        let sent = async { panic!("it was sent") };
        let refused: Result<(), Refusal> = gate.pass(sent).await;
        assert!(matches!(refused, Err(Refusal::LostRace)));
        *gate.refused_at() = Instant::now().checked_sub(LEFT_ALONE);
        assert_eq!(gate.pass(async { Ok(2) }).await.unwrap(), 2);
    }
}
