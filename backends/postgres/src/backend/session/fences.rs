//! The fences of advisory locks: a counter of the server that no commit waits for, within a bound that was
//! committed before.
//!
//! Ground rules: the counter is a sequence, which rises with each grant of any client, and a crash of the
//! server may take it back by what was not on the disk. So a fence counts only within a block of numbers
//! whose end was on the disk before the first of them was drawn. A session that has just been opened never
//! continues a block: it begins the next one, behind the end of the last. What a session draws beyond the
//! block that it knew before the draw is not used.

use std::sync::{Mutex, PoisonError};

use leasehold_core::{Failure, Fence};
use tokio_postgres::types::Type;

use crate::config::Names;
use crate::error::Refusal;
use crate::net::dial::{Link, Sql, only, read};
use crate::sql::home::FENCE_COUNTER;
use crate::sql::schema::FENCE_BLOCKS;
use crate::sql::statements::{NOW, epoch};

/// The numbers that may be given as fences without a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    epoch: i64,
    /// The last of them.
    last: i64,
}

impl Block {
    /// Returns the fence that is this number of the counter, if it is one of the block.
    fn fence(self, number: i64) -> Option<Fence> {
        let is_within = number > self.last - LENGTH && number <= self.last;
        let unsigned = |number: i64| u64::try_from(number).ok();
        if is_within { Some(Fence::new(unsigned(self.epoch)?, unsigned(number)?, 0)) } else { None }
    }
}

/// The fences of one session.
#[derive(Debug)]
pub(super) struct Fences {
    block: Mutex<Block>,
    /// One task looks for another block while the others wait for it.
    turn: tokio::sync::Mutex<()>,
}

impl Fences {
    /// Begins a block for a session that has just been opened, in the server that it is a session of. Of
    /// sessions that open together, one begins it for all.
    pub(super) async fn open(link: &Link, statements: &FenceStatements) -> Result<Fences, Refusal> {
        let block = begin(link, statements).await?;
        Ok(Fences { block: Mutex::new(block), turn: tokio::sync::Mutex::new(()) })
    }

    /// Returns the block of which numbers may be drawn from now on.
    pub(super) fn known(&self) -> Known {
        Known(*self.block.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Draws a fence for a lock that was given, where the block that was known did not have the number that
    /// was drawn with it.
    pub(super) async fn draw(
        &self,
        link: &Link,
        statements: &FenceStatements,
        mut known: Known,
    ) -> Result<Fence, Refusal> {
        for _ in 0..MAX_TRIES {
            known = self.next(link, statements, known).await?;
            let row = only(link.query(&statements.draw, &[]).await?).map_err(Refusal::Failed)?;
            if let Some(fence) = known.fence(read(&row, 0).map_err(Refusal::Failed)?) {
                return Ok(fence);
            }
        }
        Err(Refusal::Failed(Failure::unavailable(
            "other clients use up the fences faster than this one can follow: try again",
        )))
    }

    /// Returns another block than the one that was known: that of another client, or a new one.
    async fn next(&self, link: &Link, statements: &FenceStatements, known: Known) -> Result<Known, Refusal> {
        let _turn = self.turn.lock().await;
        let present = self.known();
        if present != known {
            return Ok(present);
        }
        // After each opening of another client there is another block already.
        let mut rows = link.query(&statements.read, &[]).await?;
        let is_known = |row: &tokio_postgres::Row| block(row).is_ok_and(|block| block == known.0);
        if rows.first().is_none_or(is_known) {
            rows = link.query(&statements.raise, &[&known.0.last]).await?;
            if rows.is_empty() {
                rows = link.query(&statements.read, &[]).await?;
            }
        }
        let mut block = only(rows).and_then(|row| block(&row)).map_err(Refusal::Failed)?;
        if (block.epoch, block.last) <= (known.0.epoch, known.0.last) {
            // An older copy was put back, of which numbers may have been given.
            block = begin(link, statements).await?;
        }
        *self.block.lock().unwrap_or_else(PoisonError::into_inner) = block;
        Ok(Known(block))
    }
}

/// Returns a block that begins now: its own, or that of another session which began it during this call.
///
/// The other block will do: the server has not crashed since the call began, or this session would have ended
/// with it. So the counter has lost nothing of that block.
async fn begin(link: &Link, statements: &FenceStatements) -> Result<Block, Refusal> {
    let begun = link.query(&statements.begin, &[]).await?;
    let rows = match begun.is_empty() {
        true => link.query(&statements.read, &[]).await?,
        false => begun,
    };
    only(rows).and_then(|row| block(&row)).map_err(Refusal::Failed)
}

/// The block that a session knew before it drew a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known(Block);

impl Known {
    /// Returns the epoch of all numbers of the block.
    pub(super) fn epoch(self) -> i64 {
        self.0.epoch
    }

    /// Returns the fence that is this number, if the session may give it.
    pub(super) fn fence(self, number: i64) -> Option<Fence> {
        self.0.fence(number)
    }
}

/// The statements about blocks of fences.
#[derive(Debug)]
pub(super) struct FenceStatements {
    /// Begins the next block, if the last one is still that of the beginning of the statement.
    begin: Sql,
    /// Begins the next block, if the last one still ends with this number. Without a row it begins behind this
    /// number.
    raise: Sql,
    read: Sql,
    draw: Sql,
}

impl FenceStatements {
    pub(super) fn of(names: &Names) -> FenceStatements {
        let (blocks, counter) = (names.table(FENCE_BLOCKS), names.text(FENCE_COUNTER));
        // The counter is put behind all earlier blocks while the row is locked, and the end of the block is on
        // the disk before any other session can see it. A statement that begins no block waits for no disk. The
        // row may be awaited for as long as a statement may take, which the session does not let it wait for a table.
        let new_block = |behind: &str, while_last: &str| {
            format!(
                "INSERT INTO {blocks} AS b (one, epoch, last) SELECT true, {epoch}, greatest({behind}, {NOW}) + {LENGTH} \
                 WHERE pg_catalog.set_config('lock_timeout', '0', true) IS NOT NULL \
                 ON CONFLICT (one) DO UPDATE SET epoch = greatest(b.epoch, excluded.epoch), \
                 last = greatest(b.last, {NOW}) + {LENGTH} WHERE b.last {while_last} \
                 RETURNING b.epoch, b.last, setval({counter}::regclass, b.last - {LENGTH}), \
                 pg_catalog.set_config('synchronous_commit', 'local', true)",
                epoch = epoch(names),
            )
        };
        FenceStatements {
            // The condition is of the row as it is when it can be locked, the query in it of the row as it was
            // when the statement began. So of those that wait for the lock, the first one begins the block. A row
            // that went back is of an older copy, which was put back meanwhile.
            begin: Sql {
                name: "begin_fences",
                text: new_block("0::int8", &format!("<= (SELECT o.last FROM {blocks} o)")),
                types: &[],
            },
            raise: Sql { name: "raise_fences", text: new_block("$1", "= $1"), types: &[Type::INT8] },
            read: Sql {
                name: "read_fences",
                text: format!("SELECT b.epoch, b.last FROM {blocks} b"),
                types: &[],
            },
            draw: Sql { name: "draw_fence", text: format!("SELECT {}", next(names)), types: &[] },
        }
    }
}

/// Returns the expression that draws a number. It must be evaluated when the lock has been given.
pub(super) fn next(names: &Names) -> String {
    format!("nextval({}::regclass)", names.text(FENCE_COUNTER))
}

fn block(row: &tokio_postgres::Row) -> Result<Block, Failure> {
    Ok(Block { epoch: read(row, 0)?, last: read(row, 1)? })
}

/// The numbers of one block: so many grants cost one commit. Each session that is opened uses up a whole
/// one, and the counter goes by microseconds, so it falls behind the clock all the same.
const LENGTH: i64 = 10_000;
/// Blocks of others that may be used up before this client has drawn from them.
const MAX_TRIES: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_the_known_block_are_fences() {
        let block = Block { epoch: 2, last: 3 * LENGTH };
        assert_eq!(block.fence(2 * LENGTH), None, "it is of the block before");
        assert_eq!(block.fence(3 * LENGTH + 1), None, "no bound for it is on the disk");
        for number in [2 * LENGTH + 1, 3 * LENGTH] {
            assert_eq!(block.fence(number), Some(Fence::new(2, number.unsigned_abs(), 0)));
        }
    }
}
