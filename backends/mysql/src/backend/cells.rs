//! One row per resource: the store behind the leases.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{
    AmendKind, Call, Cell, CellRegisters, CellStore, CellUpdate, ClockSource, Found, InsertOutcome, Origin,
    Put, Swap,
};
use leasehold_core::{Clock, Effect, Failure, FailureKind, Fence, Finding, Profile, Registers, Resource};
use mysql_async::{Params, Row, Value};

use crate::backend::diagnose::diagnose;
use crate::config::{Create, MySqlConfig};
use crate::error::Refusal;
use crate::net::dial::{Done, lock_wait, read};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::schema;
use crate::sql::statements::{Statements, micros, signed};

/// The table of locks in one database.
#[derive(Debug)]
pub struct MySqlCells {
    pub(crate) pool: Arc<Pool>,
    pub(crate) server: Server,
    statements: Statements,
    profile: Profile,
    /// Its own cells, in the table of registers. They have none themselves.
    registers: Option<Box<CellRegisters<MySqlCells>>>,
}

impl MySqlCells {
    /// Connects, creates what is missing, and asks what the server is.
    pub(crate) async fn connect(config: MySqlConfig, clock: Arc<dyn Clock>) -> Result<MySqlCells, Failure> {
        let pool = Arc::new(Pool::new(Arc::new(config), clock));
        schema::ensure(&pool).await?;
        let server = Server::inspect(&pool).await?;
        let profile = server.profile(&pool.config);
        let cells = |ending, registers| MySqlCells {
            statements: Statements::of(&pool.config.names, ending),
            pool: pool.clone(),
            server: server.clone(),
            profile: profile.clone(),
            registers,
        };
        let registers = CellRegisters::new(cells("_registers", None));
        Ok(cells("", Some(Box::new(registers))))
    }

    /// Sends one statement. A table that is lost, with the server's data, is made anew.
    async fn exec(&self, sql: &str, params: Vec<Value>) -> Result<Done, Refusal> {
        match self.pool.exec(sql, Params::Positional(params.clone())).await {
            Err(Refusal::NoTable(failure)) => {
                self.recreate_tables(failure).await?;
                self.pool.exec(sql, Params::Positional(params)).await
            }
            answer => answer,
        }
    }

    /// Runs several statements without parameters, as [`MySqlCells::exec`] does.
    async fn run(&self, statements: &str) -> Result<Vec<Row>, Refusal> {
        match self.pool.run(statements).await {
            Err(Refusal::NoTable(failure)) => {
                self.recreate_tables(failure).await?;
                self.pool.run(statements).await
            }
            answer => answer,
        }
    }

    async fn recreate_tables(&self, failure: Failure) -> Result<(), Refusal> {
        if self.pool.config.sql.create == Create::No {
            return Err(Refusal::NoTable(failure));
        }
        if self.registers.is_some() {
            tracing::warn!(%failure, "the lock table is gone: all locks that were held are lost");
        }
        schema::restore(&self.pool).await.map_err(Refusal::Failed)
    }

    /// Changes one row, as [`MySqlCells::exec`] does; a change that lost a race did nothing.
    async fn change(&self, sql: &str, params: Vec<Value>) -> Result<Done, Failure> {
        match self.exec(sql, params).await {
            Err(Refusal::LostRace) => Ok(Done { rows: Vec::new(), changed: 0, number: 0 }),
            answer => answer.map_err(Refusal::into_failure),
        }
    }

    async fn amend_one(&self, amend: &CellUpdate) -> Result<Option<Fence>, Failure> {
        let CellUpdate { at, seen, kind, put } = amend;
        let sql = match kind {
            AmendKind::Retake => &self.statements.retake,
            AmendKind::Keep => &self.statements.keep,
        };
        Ok(amended(amend, &self.change(sql, own(at, *seen, put)).await?))
    }

    async fn amend_many(&self, amends: &[&CellUpdate]) -> Result<Vec<Option<Fence>>, Failure> {
        let seconds = lock_wait(self.pool.config.sql.timeout);
        let done = match self.transact(&self.statements.amend_many(amends, seconds), amends.len()).await {
            // A dropped table is created anew by the next read, which follows a change that was not made.
            // So they do where a transaction of another client keeps the row of one of them: it keeps no
            // other one.
            Err(Refusal::LostRace | Refusal::NoTable(_) | Refusal::RowLocked(_)) => {
                return Ok(vec![None; amends.len()]);
            }
            answer => answer.map_err(Refusal::into_failure)?,
        };
        Ok(amends.iter().zip(&done).map(|(amend, done)| amended(amend, done)).collect())
    }

    async fn swap_one(&self, swap: &Swap) -> Result<bool, Failure> {
        let Swap { at, seen, basis, put, .. } = swap;
        let anew = *basis == Origin::Renewed;
        let done = if anew && put.call == Call::None {
            self.change(&self.statements.keep, own(at, *seen, put)).await?
        } else {
            let params = vec![
                put.text.as_str().into(),
                signed(put.version).into(),
                signed(put.fence.seq).into(),
                anew.into(),
                micros(put.keep).into(),
                at.as_str().into(),
                signed(*seen).into(),
                anew.into(),
            ];
            self.change(&self.statements.swap, params).await?
        };
        Ok(done.changed == 1)
    }

    /// Makes those of these changes whose rows no transaction keeps locked. Only a read can leave out locked
    /// rows, and a row may be locked after it, so a change that meets one reads again.
    async fn swap_many(&self, swaps: &[Swap]) -> Result<Vec<bool>, Refusal> {
        let mut done = vec![false; swaps.len()];
        for tries in 1.. {
            let names = swaps.iter().map(|swap| swap.at.as_str());
            let rows = match self.run(&self.statements.unlocked(names)).await {
                Err(Refusal::LostRace) => break,
                rows => rows?,
            };
            let free: Result<HashSet<String>, Failure> = rows.iter().map(|row| read(row, 0)).collect();
            let free = free.map_err(Refusal::Failed)?;
            let positions: Vec<usize> =
                (0..swaps.len()).filter(|at| free.contains(swaps[*at].at.as_str())).collect();
            if positions.is_empty() {
                break;
            }
            let chosen: Vec<&Swap> = positions.iter().map(|at| &swaps[*at]).collect();
            let seconds = lock_wait(self.pool.config.sql.timeout);
            match self.transact(&self.statements.swap_many(&chosen, seconds), chosen.len()).await {
                Err(Refusal::RowLocked(_)) if tries < MAX_READS => {}
                Err(Refusal::LostRace) => break,
                answer => {
                    for (position, change) in positions.iter().zip(answer?) {
                        done[*position] = change.changed == 1;
                    }
                    break;
                }
            }
        }
        Ok(done)
    }

    /// Sends statements that change so many rows, one each, and returns the result of each.
    async fn transact(&self, statements: &str, count: usize) -> Result<Vec<Done>, Refusal> {
        let mut done = self.pool.run_each(statements).await?;
        // The first two set the limit and begin the transaction, the last two end it and set the limit back.
        if done.len() != count + 4 {
            let text = format!("{} statements were answered, of {}", done.len(), count + 4);
            return Err(Refusal::Failed(Failure::unanswered(text)));
        }
        Ok(done.drain(2..count + 2).collect())
    }
}

#[async_trait]
impl CellStore for MySqlCells {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock_source(&self) -> ClockSource {
        ClockSource::Store
    }

    fn commits_at_once(&self) -> Option<usize> {
        // The server spends half as much on a change that shares its transaction, whereas two at a time
        // gain nothing.
        Some(1)
    }

    fn max_text(&self) -> usize {
        self.server.max_text()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.registers.as_deref().map(|registers| registers as &dyn Registers)
    }

    async fn try_insert(&self, at: &Resource, put: &Put) -> Result<InsertOutcome, Failure> {
        let (text, version, keep) = (put.text.as_str(), signed(put.version), micros(put.keep));
        let params = vec![
            at.as_str().into(),
            text.into(),
            version.into(),
            keep.into(),
            text.into(),
            version.into(),
            keep.into(),
        ];
        Ok(inserted(put, &self.change(&self.statements.try_insert, params).await?))
    }

    async fn amend(&self, amends: &[&CellUpdate]) -> Vec<Result<Option<Fence>, Failure>> {
        if let [one] = amends {
            return vec![self.amend_one(one).await];
        }
        let mut answers = Vec::with_capacity(amends.len());
        for some in parts(amends, |amend| length(&amend.at, &amend.put), self.server.max_text()) {
            match self.amend_many(some).await {
                Ok(done) => answers.extend(done.into_iter().map(Ok)),
                Err(failure) => answers.extend(all(some.len(), &failure)),
            }
        }
        answers
    }

    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>> {
        let rows = match at {
            [one] => self.exec(&self.statements.read, vec![one.as_str().into()]).await.map(|done| done.rows),
            many => self.run(&self.statements.read_many(many.iter().map(|at| at.as_str()))).await,
        };
        let found = rows.map_err(Refusal::into_failure);
        let found: Result<HashMap<String, Cell>, Failure> =
            found.and_then(|rows| rows.iter().map(|row| Ok((read(row, 0)?, cell(row)?))).collect());
        match found {
            Ok(mut found) => at.iter().map(|at| Ok(found.remove(at.as_str()))).collect(),
            Err(failure) => all(at.len(), &failure),
        }
    }

    async fn swap(&self, swaps: &[Swap]) -> Vec<Result<bool, Failure>> {
        match swaps {
            [swap] => vec![self.swap_one(swap).await],
            many => self.swap_unlocked(many).await,
        }
    }

    async fn swap_unlocked(&self, swaps: &[Swap]) -> Vec<Result<bool, Failure>> {
        let mut answers = Vec::with_capacity(swaps.len());
        for some in parts(swaps, |swap| length(&swap.at, &swap.put), self.server.max_text()) {
            match self.swap_many(some).await {
                Ok(done) => answers.extend(done.into_iter().map(Ok)),
                Err(refusal) => answers.extend(all(some.len(), &refusal.into_failure())),
            }
        }
        answers
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<(Resource, Cell)>, Failure> {
        let after = after.map_or("", Resource::as_str);
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        let params = vec![prefix.into(), after.into(), prefix.into(), limit.into()];
        let rows = self.exec(&self.statements.list, params).await.map_err(Refusal::into_failure)?.rows;
        rows.iter().map(|row| Ok((named(row)?, cell(row)?))).collect()
    }

    async fn all(&self, after: Option<&Resource>, limit: usize) -> Result<Vec<Found>, Failure> {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        let params = vec![after.map_or("", Resource::as_str).into(), limit.into()];
        let rows = self.exec(&self.statements.all, params).await.map_err(Refusal::into_failure)?.rows;
        let found = |row: &Row| {
            let idle = u64::try_from(read::<i64>(row, 6)?).unwrap_or_default();
            Ok(Found { at: named(row)?, cell: cell(row)?, idle: Duration::from_micros(idle) })
        };
        rows.iter().map(found).collect()
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        diagnose(&self.pool, ttl).await
    }
}

/// Returns the parameters for a row that this client has written last.
fn own(at: &Resource, seen: u64, put: &Put) -> Vec<Value> {
    let (version, keep, seen) = (signed(put.version), micros(put.keep), signed(seen));
    vec![put.text.as_str().into(), version.into(), keep.into(), at.as_str().into(), seen.into()]
}

/// Returns the outcome of one change, by its own answer.
fn amended(amend: &CellUpdate, done: &Done) -> Option<Fence> {
    let fence = match amend.kind {
        AmendKind::Retake => Fence::new(0, done.number, 0),
        AmendKind::Keep => amend.put.fence,
    };
    (done.changed == 1).then_some(fence)
}

fn inserted(put: &Put, done: &Done) -> InsertOutcome {
    match done.changed {
        // One row was inserted, or one was changed, which an insertion counts as two.
        1 | 2 => InsertOutcome::Taken { version: put.version, fence: Fence::new(0, done.number, 0) },
        _ => InsertOutcome::Held(None),
    }
}

/// Returns the resource of a row.
fn named(row: &Row) -> Result<Resource, Failure> {
    Resource::new(&read::<String>(row, 0)?).map_err(|error| {
        let text = format!("the table has a row that is not ours: {error}");
        Failure::new(FailureKind::Foreign, Effect::None, text)
    })
}

/// Reads claims, version, counter, age and the server's clock, behind the name.
fn cell(row: &Row) -> Result<Cell, Failure> {
    let (seq, now): (u64, u64) = (read(row, 3)?, read(row, 5)?);
    Ok(Cell {
        text: read(row, 1)?,
        version: read(row, 2)?,
        fence: Fence::new(0, seq, 0),
        floor: Fence::new(0, seq.max(now), 0),
        age: Some(Duration::from_micros(read(row, 4)?)),
    })
}

/// Cuts where a request would become too long: one change alone always fits, since its text
/// does.
fn parts<T>(changes: &[T], length: impl Fn(&T) -> usize, most: usize) -> Vec<&[T]> {
    let mut bytes = 0;
    let mut parts = Vec::new();
    let mut first = 0;
    for (at, change) in changes.iter().enumerate() {
        let own = length(change);
        bytes += own;
        if at > first && bytes > most {
            parts.push(&changes[first..at]);
            (first, bytes) = (at, own);
        }
    }
    parts.push(&changes[first..]);
    parts
}

/// Returns the length of one change in a request. What else is in its statement has a length of its own.
fn length(at: &Resource, put: &Put) -> usize {
    put.text.len() + 2 * at.as_str().len() + NUMBERS
}

fn all<T>(count: usize, failure: &Failure) -> Vec<Result<T, Failure>> {
    (0..count).map(|_| Err(failure.clone())).collect()
}

/// Bytes of the numbers and words of one change in a request, halved as all that is counted, since texts
/// have two digits a byte.
const NUMBERS: usize = 250;
/// The number of times that a change reads which of its rows are locked.
const MAX_READS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_and_other_conditions_are_sent_apart() {
        let swap = |kilobytes: usize, basis| Swap {
            at: Resource::new("a").unwrap(),
            seen: 1,
            epoch: 0,
            basis,
            put: Put {
                text: "x".repeat(kilobytes * 1_000),
                version: 1,
                fence: Fence::default(),
                keep: Duration::ZERO,
                call: Call::None,
            },
        };
        let swaps = [10, 10, 80, 200, 1].map(|kilobytes| swap(kilobytes, Origin::Kept));
        let sizes = |swaps: &[Swap], most| {
            let parts = parts(swaps, |swap| length(&swap.at, &swap.put), most);
            parts.iter().map(|part| part.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&swaps, 99_000), [2, 1, 1, 1]);
        assert_eq!(sizes(&swaps, 1_000_000), [5]);
    }
}
