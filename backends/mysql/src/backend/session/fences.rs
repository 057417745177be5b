//! The fences of named locks: a counter in the server's memory that no commit waits for, within a bound that
//! was committed before.
//!
//! The counter is `UUID_SHORT()`, one for all connections of a server. It begins at the second of the
//! server's start, and so rises over a restart, unless the clock was set back or the server starts twice in a
//! second. The table knows of both cases; for one that was lost see the schema.
//!
//! Ground rules: a fence counts only within a block of numbers whose end was on the disk before the first of
//! them was drawn. A session that has just been opened begins a block behind the end of the last one: the
//! counter is called until it is there. If it is before the beginning of the last block, the server is
//! another run under an earlier clock, and a number is added to it from then on.
//!
//! A session that holds locks begins its next block over another connection: a table that is locked, or a commit that
//! waits for a replica, would keep its own from giving a sign of life, and all its locks would be lost.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_backend::random;
use leasehold_core::{Effect, Failure, FailureKind, Fence};
use mysql_async::Row;

use crate::config::Names;
use crate::error::Refusal;
use crate::net::dial::{only, read};
use crate::net::pool::Pool;
use crate::net::session::SessionLink;
use crate::sql::schema::{COUNTER, FENCES};

/// The numbers that may be given as fences without a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    /// Added to the server's counter.
    ahead: u64,
    /// The number before the first of them.
    start: u64,
    /// The last of them.
    last: u64,
}

/// The block that a session knew before it drew a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known(Block);

impl Known {
    /// Returns the fence for this state of the server's counter, if the session may give it.
    pub(super) fn fence(self, counter: u64) -> Option<Fence> {
        let Block { ahead, start, last } = self.0;
        let number = counter.checked_add(ahead)?;
        (number > start && number <= last).then(|| Fence::new(0, number, 0))
    }
}

/// The fences of one session.
#[derive(Debug)]
pub(super) struct Fences {
    block: Mutex<Block>,
    /// The name of a lock that the session has for all its life. By this another connection sees that it leads to the
    /// same run of the same server.
    mark: String,
    /// One task looks for another block while the others wait for it.
    turn: tokio::sync::Mutex<()>,
}

impl Fences {
    /// Begins a block for a session that has just been opened.
    pub(super) async fn open(link: &SessionLink, names: &Names) -> Result<Fences, Refusal> {
        let mark = format!("{MARK}{:016x}", random::number().map_err(Refusal::Failed)?);
        let first = format!("SET @marked = GET_LOCK('{mark}', 0); ");
        let block = raise_over(link, names, &(first + &raising(names, None))).await?;
        Ok(Fences { block: Mutex::new(block), mark, turn: tokio::sync::Mutex::new(()) })
    }

    /// Returns the block of which numbers may be drawn from now on.
    pub(super) fn known(&self) -> Known {
        Known(*self.block.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Draws a fence for a lock that was given, where the block that was known did not have the number that
    /// was drawn with it.
    pub(super) async fn draw(
        &self,
        link: &SessionLink,
        pool: &Pool,
        mut known: Known,
    ) -> Result<Fence, Refusal> {
        for _ in 0..MAX_TRIES {
            known = self.next(link, pool, known).await?;
            let row = only(link.run(&format!("SELECT {COUNTER}")).await?).map_err(Refusal::Failed)?;
            if let Some(fence) = known.fence(read(&row, 0).map_err(Refusal::Failed)?) {
                return Ok(fence);
            }
        }
        Err(Refusal::Failed(Failure::unavailable(
            "other clients use up the fences faster than this one can follow: try again",
        )))
    }

    /// Returns another block than the one that was known: that of another client, or a new one.
    async fn next(&self, link: &SessionLink, pool: &Pool, known: Known) -> Result<Known, Refusal> {
        let _turn = self.turn.lock().await;
        let present = self.known();
        if present != known {
            return Ok(present);
        }
        let names = &pool.config.names;
        let statements = raising(names, Some(known.0));
        let is_here = format!("IS_USED_LOCK('{}') <=> {}", self.mark, link.number);
        let beside = pool.run_within(&format!("{statements}, {is_here}"), COUNTING).await?;
        let row = only(beside).map_err(Refusal::Failed)?;
        let block = match read::<u8>(&row, 3).map_err(Refusal::Failed)? {
            0 => raise_over(link, names, &statements).await?,
            _ => block(&row, &names.table(FENCES)).map_err(Refusal::Failed)?,
        };
        *self.block.lock().unwrap_or_else(PoisonError::into_inner) = block;
        Ok(Known(block))
    }
}

/// Returns the statements that begin the next block, unless the last one is another than is known here already. They
/// answer the present one. The row is changed in any case: these servers let others see a commit before it is on the
/// disk, and a later commit brings the earlier ones there.
fn raising(names: &Names, known: Option<Block>) -> String {
    let table = names.table(FENCES);
    let is_due = known.map_or("TRUE".to_owned(), |known| format!("@last = {}", known.last));
    format!(
        "SET @ahead = NULL, @start = NULL, @last = NULL; START TRANSACTION; \
         SELECT ahead, start, last INTO @ahead, @start, @last FROM {table} WHERE one = 1 FOR UPDATE; \
         SET @due = {is_due}; SET @now = {COUNTER} + @ahead; \
         SET @ahead = IF(@due AND @now <= @start, @ahead + @last - @now, @ahead); \
         SET @now = {COUNTER} + @ahead; \
         SET @called = IF(@due AND @now <= @last, BENCHMARK(@last - @now + 1, UUID_SHORT()), 0); \
         SET @start = IF(@due, {COUNTER} + @ahead, @start); \
         SET @last = IF(@due, @start + {LENGTH}, @last); \
         UPDATE {table} SET ahead = @ahead, start = @start, last = @last, turn = turn + 1 WHERE one = 1; COMMIT; \
         SELECT CAST(@ahead AS UNSIGNED), CAST(@start AS UNSIGNED), CAST(@last AS UNSIGNED)"
    )
}

/// Begins a block over the connection of the session.
async fn raise_over(link: &SessionLink, names: &Names, statements: &str) -> Result<Block, Refusal> {
    let rows = match link.run_within(statements, COUNTING).await {
        Ok(rows) => rows,
        Err(refusal) => {
            if link.is_open() {
                link.run("ROLLBACK").await?;
            }
            return Err(refusal);
        }
    };
    only(rows).and_then(|row| block(&row, &names.table(FENCES))).map_err(Refusal::Failed)
}

fn block(row: &Row, table: &str) -> Result<Block, Failure> {
    let number = |at| {
        read::<Option<u64>>(row, at)?.ok_or_else(|| {
            let text = format!("the table {table} is empty: run what `leasehold schema --store` prints");
            Failure::new(FailureKind::Unsupported, Effect::None, text)
        })
    };
    Ok(Block { ahead: number(0)?, start: number(1)?, last: number(2)? })
}

/// The numbers of one block: so many grants cost one commit. Each session that is opened uses up a whole
/// one; the counter has 16 million for each second.
const LENGTH: u64 = 10_000;
/// The time that a busy server takes to call its counter 16 million times. The first session behind a new table does
/// that, as the table begins at the end of a second of the counter.
const COUNTING: Duration = Duration::from_secs(10);
/// The beginning of the names of locks by which sessions are known.
const MARK: &str = "leasehold-session-";
/// Blocks of others that may be used up before this client has drawn from them.
const MAX_TRIES: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_the_known_block_are_fences() {
        let known = Known(Block { ahead: 5, start: 100, last: 200 });
        assert_eq!(known.fence(95), None, "it is of the block before");
        assert_eq!(known.fence(196), None, "no bound for it is on the disk");
        assert_eq!(known.fence(96), Some(Fence::new(0, 101, 0)));
        assert_eq!(known.fence(195), Some(Fence::new(0, 200, 0)));
    }
}
