//! One row per resource: the store behind the leases.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{
    AmendKind, Call, Cell, CellRegisters, CellStore, CellUpdate, ClockSource, Found, InsertOutcome, Notifier,
    Origin, Put, Swap,
};
use leasehold_core::{Failure, Fence, Finding, Profile, Registers, Resource, WaitMode};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::backend::diagnose::diagnose;
use crate::backend::sweep;
use crate::config::{Create, PostgresConfig};
use crate::error::Refusal;
use crate::net::dial::{Sql, read};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::rows::{cell, end_of, fence, micros, named, signed};
use crate::sql::schema;
use crate::sql::statements::{Statements, Table};
use crate::wait::calls::{channel, encode_call};
use crate::wait::listener::Listener;

/// The table of locks in one database.
#[derive(Debug)]
pub struct PostgresCells {
    pub(crate) pool: Arc<Pool>,
    pub(crate) server: Server,
    statements: Statements,
    profile: Profile,
    /// The channel of calls; empty where no client listens.
    channel: String,
    listener: Option<Listener>,
    /// Its own cells, in the table of registers. They have none themselves.
    registers: Option<Box<CellRegisters<PostgresCells>>>,
}

impl PostgresCells {
    /// Connects, creates what is missing, and asks what the server is.
    pub(crate) async fn connect(config: PostgresConfig) -> Result<PostgresCells, Failure> {
        let pool = Arc::new(Pool::new(Arc::new(config)));
        schema::ensure(&pool).await?;
        let server = Server::inspect(&pool).await?;
        let profile = server.profile(&pool.config);
        let channel = channel(&pool).await?;
        let listens = profile.waiting == WaitMode::Notifies;
        let cells = |table, channel: String, registers| PostgresCells {
            pool: pool.clone(),
            server: server.clone(),
            statements: Statements::of(&pool.config.names, table),
            profile: profile.clone(),
            listener: listens.then(|| Listener::start(pool.config.clone(), channel.clone())),
            channel,
            registers,
        };
        let registers = CellRegisters::new(cells(Table::Registers, format!("{channel}_registers"), None));
        Ok(cells(Table::Locks, channel, Some(Box::new(registers))))
    }

    /// Sends a read-only statement as [`PostgresCells::query`] does; one that lost a race is sent again.
    async fn query_retrying(&self, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Refusal> {
        match self.pool.query_retrying(sql, params).await {
            // The table is made anew, and shows nothing.
            Err(Refusal::NoTable(_)) => self.query(sql, params).await,
            answer => answer,
        }
    }

    /// Sends one statement. A table that is lost, with the server's data, is made anew.
    async fn query(&self, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Refusal> {
        match self.pool.query(sql, params).await {
            Err(Refusal::NoTable(failure)) if self.pool.config.sql.create == Create::Yes => {
                if self.registers.is_some() {
                    tracing::warn!(%failure, "the lock table is gone: all locks that were held are lost");
                }
                schema::restore(&self.pool).await.map_err(Refusal::Failed)?;
                self.pool.query(sql, params).await
            }
            answer => answer,
        }
    }

    async fn retake_one(&self, amend: &CellUpdate) -> Result<Option<Fence>, Failure> {
        let CellUpdate { at, seen, put, .. } = amend;
        let (name, seen, version, keep) = (at.as_str(), signed(*seen), signed(put.version), micros(put.keep));
        let answer =
            self.query(&self.statements.retake_one, &[&name, &seen, &put.text, &version, &keep]).await;
        rows_of(answer)?.first().map(|row| fence(row, 0)).transpose()
    }

    async fn keep_one(&self, at: &Resource, seen: u64, put: &Put) -> Result<bool, Failure> {
        let (name, seen, version, keep) = (at.as_str(), signed(seen), signed(put.version), micros(put.keep));
        let answer =
            self.pool.query(&self.statements.keep_one, &[&name, &seen, &put.text, &version, &keep]).await;
        Ok(!rows_of(answer)?.is_empty())
    }

    async fn amend_many(&self, amends: &[&CellUpdate]) -> Result<Vec<Option<Fence>>, Failure> {
        let names: Vec<&str> = amends.iter().map(|amend| amend.at.as_str()).collect();
        let retakes: Vec<bool> = amends.iter().map(|amend| amend.kind == AmendKind::Retake).collect();
        let seen: Vec<i64> = amends.iter().map(|amend| signed(amend.seen)).collect();
        let texts: Vec<&str> = amends.iter().map(|amend| amend.put.text.as_str()).collect();
        let versions: Vec<i64> = amends.iter().map(|amend| signed(amend.put.version)).collect();
        let keeps: Vec<i64> = amends.iter().map(|amend| micros(amend.put.keep)).collect();
        let answer = match self.statements.amend_few(amends.len()) {
            Some(few) => {
                let mut params: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(few.types.len());
                for at in 0..amends.len() {
                    params.extend::<[&(dyn ToSql + Sync); 6]>([
                        &names[at],
                        &retakes[at],
                        &seen[at],
                        &texts[at],
                        &versions[at],
                        &keeps[at],
                    ]);
                }
                self.query(few, &params).await
            }
            None => {
                let many = &self.statements.amend_many;
                self.query(many, &[&names, &retakes, &seen, &texts, &versions, &keeps]).await
            }
        };
        let rows = rows_of(answer)?;
        let mut done = HashMap::with_capacity(rows.len());
        for row in &rows {
            done.insert(read::<&str>(row, 0)?, fence(row, 1)?);
        }
        Ok(names.into_iter().map(|name| done.get(name).copied()).collect())
    }

    async fn keep_many(&self, swaps: &[Swap]) -> Result<Vec<bool>, Failure> {
        let names: Vec<&str> = swaps.iter().map(|swap| swap.at.as_str()).collect();
        let seen: Vec<i64> = swaps.iter().map(|swap| signed(swap.seen)).collect();
        let texts: Vec<&str> = swaps.iter().map(|swap| swap.put.text.as_str()).collect();
        let versions: Vec<i64> = swaps.iter().map(|swap| signed(swap.put.version)).collect();
        let keeps: Vec<i64> = swaps.iter().map(|swap| micros(swap.put.keep)).collect();
        let answer =
            self.pool.query(&self.statements.keep_many, &[&names, &seen, &texts, &versions, &keeps]).await;
        done(swaps, answer)
    }

    async fn swap_one(&self, swap: &Swap) -> Result<bool, Failure> {
        let Swap { at, seen, epoch, basis, put } = swap;
        let (name, call) = (at.as_str(), encode_call(at, &put.call));
        let (seen, within, version) = (signed(*seen), signed(*epoch), signed(put.version));
        let (epoch, seq, keep) = (signed(put.fence.epoch), signed(put.fence.seq), micros(put.keep));
        let anew = *basis == Origin::Renewed;
        let answer = self
            .pool
            .query(
                &self.statements.swap_one,
                &[
                    &name,
                    &seen,
                    &within,
                    &anew,
                    &put.text,
                    &version,
                    &epoch,
                    &seq,
                    &keep,
                    &call,
                    &self.channel,
                ],
            )
            .await;
        Ok(!rows_of(answer)?.is_empty())
    }

    async fn swap_many(&self, swaps: &[Swap]) -> Result<Vec<bool>, Failure> {
        let names: Vec<&str> = swaps.iter().map(|swap| swap.at.as_str()).collect();
        let numbers = |number: fn(&Swap) -> u64| -> Vec<i64> {
            swaps.iter().map(|swap| signed(number(swap))).collect()
        };
        let (seen, within) = (numbers(|swap| swap.seen), numbers(|swap| swap.epoch));
        let anew: Vec<bool> = swaps.iter().map(|swap| swap.basis == Origin::Renewed).collect();
        let texts: Vec<&str> = swaps.iter().map(|swap| swap.put.text.as_str()).collect();
        let (versions, epochs) = (numbers(|swap| swap.put.version), numbers(|swap| swap.put.fence.epoch));
        let seqs = numbers(|swap| swap.put.fence.seq);
        let keeps: Vec<i64> = swaps.iter().map(|swap| micros(swap.put.keep)).collect();
        let calls: Vec<String> = swaps.iter().map(|swap| encode_call(&swap.at, &swap.put.call)).collect();
        let answer = self
            .pool
            .query(
                &self.statements.swap_many,
                &[
                    &names,
                    &seen,
                    &within,
                    &anew,
                    &texts,
                    &versions,
                    &epochs,
                    &seqs,
                    &keeps,
                    &calls,
                    &self.channel,
                ],
            )
            .await;
        done(swaps, answer)
    }
}

#[async_trait]
impl CellStore for PostgresCells {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock_source(&self) -> ClockSource {
        ClockSource::Store
    }

    fn commits_at_once(&self) -> Option<usize> {
        // One is carried out while this client reads the answers of the other.
        Some(2)
    }

    fn max_text(&self) -> usize {
        MAX_TEXT
    }

    fn notifier(&self) -> Option<&Notifier> {
        self.listener.as_ref().map(Listener::notifier)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.registers.as_deref().map(|registers| registers as &dyn Registers)
    }

    async fn try_insert(&self, at: &Resource, put: &Put) -> Result<InsertOutcome, Failure> {
        let (name, version, keep) = (at.as_str(), signed(put.version), micros(put.keep));
        let answer = self
            .query(
                &self.statements.try_insert,
                &[&name, &put.text, &version, &keep, &encode_call(at, &put.call), &self.channel],
            )
            .await;
        let rows = rows_of(answer)?;
        let Some(row) = rows.first() else { return Ok(InsertOutcome::Held(None)) };
        if read::<bool>(row, 0)? {
            let fence = fence(row, 4)?;
            return Ok(InsertOutcome::Taken { version: put.version, fence });
        }
        Ok(InsertOutcome::Held(Some(cell(row, 2)?)))
    }

    async fn amend(&self, amends: &[&CellUpdate]) -> Vec<Result<Option<Fence>, Failure>> {
        match amends {
            [one] => vec![match one.kind {
                AmendKind::Retake => self.retake_one(one).await,
                AmendKind::Keep => {
                    let kept = self.keep_one(&one.at, one.seen, &one.put).await;
                    kept.map(|is_done| is_done.then_some(one.put.fence))
                }
            }],
            many => match self.amend_many(many).await {
                Ok(done) => done.into_iter().map(Ok).collect(),
                Err(failure) => many.iter().map(|_| Err(failure.clone())).collect(),
            },
        }
    }

    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>> {
        let names: Vec<&str> = at.iter().map(|at| at.as_str()).collect();
        let answer = match names[..] {
            [one] => self.query_retrying(&self.statements.read_one, &[&one]).await,
            _ => self.query_retrying(&self.statements.read_many, &[&names]).await,
        };
        let found = match answer {
            Ok(rows) => by_name(&rows),
            Err(refusal) => Err(refusal.into_failure()),
        };
        match found {
            Ok(mut found) => at.iter().map(|at| Ok(found.remove(at.as_str()))).collect(),
            Err(failure) => at.iter().map(|_| Err(failure.clone())).collect(),
        }
    }

    async fn swap(&self, swaps: &[Swap]) -> Vec<Result<bool, Failure>> {
        match swaps {
            [swap] if is_kept(swap) => vec![self.keep_one(&swap.at, swap.seen, &swap.put).await],
            [swap] => vec![self.swap_one(swap).await],
            many => self.swap_unlocked(many).await,
        }
    }

    async fn swap_unlocked(&self, swaps: &[Swap]) -> Vec<Result<bool, Failure>> {
        let done = match swaps.iter().all(is_kept) {
            true => self.keep_many(swaps).await,
            false => self.swap_many(swaps).await,
        };
        match done {
            Ok(done) => done.into_iter().map(Ok).collect(),
            Err(failure) => swaps.iter().map(|_| Err(failure.clone())).collect(),
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<(Resource, Cell)>, Failure> {
        let (after, end) = (after.map_or("", Resource::as_str), end_of(prefix));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let answer = self.query_retrying(&self.statements.list, &[&prefix, &after, &end, &limit]).await;
        let rows = answer.map_err(Refusal::into_failure)?;
        rows.iter().map(|row| Ok((named(row)?, cell(row, 1)?))).collect()
    }

    async fn all(&self, after: Option<&Resource>, limit: usize) -> Result<Vec<Found>, Failure> {
        sweep::all(&self.pool, after, limit).await
    }

    async fn forget(&self, unused: &[&Found]) -> Result<Option<usize>, Failure> {
        sweep::forget(&self.pool, unused).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        diagnose(&self.pool, &self.server, ttl).await
    }
}

/// Returns `true` if it is of a claim alone in its cell, so that epoch and counter stay and no waiter is
/// called.
fn is_kept(swap: &Swap) -> bool {
    swap.basis == Origin::Renewed && swap.put.call == Call::None
}

/// Returns the rows of the answer to a change. One that lost a race to another has changed no row, and
/// answers none.
fn rows_of(answer: Result<Vec<Row>, Refusal>) -> Result<Vec<Row>, Failure> {
    match answer {
        Ok(rows) => Ok(rows),
        Err(Refusal::LostRace) => Ok(Vec::new()),
        Err(refusal) => Err(refusal.into_failure()),
    }
}

/// Returns which of these changes were made, by the names that come first in the rows of the answer.
fn done(swaps: &[Swap], answer: Result<Vec<Row>, Refusal>) -> Result<Vec<bool>, Failure> {
    let done: Result<HashSet<String>, Failure> = rows_of(answer)?.iter().map(|row| read(row, 0)).collect();
    let done = done?;
    Ok(swaps.iter().map(|swap| done.contains(swap.at.as_str())).collect())
}

fn by_name(rows: &[Row]) -> Result<HashMap<String, Cell>, Failure> {
    rows.iter().map(|row| Ok((read(row, 0)?, cell(row, 1)?))).collect()
}

/// A queue of some ten thousand claims with short notes.
const MAX_TEXT: usize = 4 << 20;
