//! Rows locked by open transactions: each lock has a connection of its own, and a waiter waits in the
//! server.
//!
//! Ground rules: everything that is set for a lock is set for its transaction, so that it works through a
//! pooler that keeps a session for no longer. What others are to see at once, and what must not be taken
//! back, is written by another connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::session::{Answer, Ask, Capacity, Session, Sessions, Sharing};
use leasehold_core::{Claim, ClaimInfo, Failure, Finding, Profile, Resource, ResourceSummary, WaitMode};
use tokio::sync::{Mutex, watch};
use tokio_postgres::types::Type;

use super::holders::{Entry, evict, evicted};
use super::{Base, draw_word, process};
use crate::config::{Create, Names, PostgresConfig};
use crate::error::Refusal;
use crate::net::dial::{Link, Sql, only, read};
use crate::sql::rows::fence;

/// Rows of one table, locked by open transactions.
#[derive(Debug)]
pub(crate) struct ForUpdate {
    base: Arc<Base>,
    statements: Arc<Statements>,
    profile: Profile,
}

impl ForUpdate {
    pub(crate) async fn connect(config: PostgresConfig) -> Result<ForUpdate, Failure> {
        let base = Base::connect(config).await?;
        let statements = Arc::new(Statements::of(&base.config.names));
        let profile = base.server.session_profile(&base.config, WaitMode::Blocks);
        base.tidy(&base.dial().await?).await?;
        Ok(ForUpdate { base: Arc::new(base), statements, profile })
    }
}

#[async_trait]
impl Sessions for ForUpdate {
    type Session = RowSession;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn room(&self) -> Capacity {
        Capacity::One { sessions: self.base.config.sql.transactions, option: "transactions=" }
    }

    fn answer_limit(&self) -> Duration {
        self.base.config.sql.timeout
    }

    fn key(&self, resource: &Resource) -> String {
        resource.as_str().to_owned()
    }

    async fn open(&self) -> Result<RowSession, Failure> {
        let link = self.base.dial().await?;
        let (base, statements) = (self.base.clone(), self.statements.clone());
        let (pid, call, calling) = (AtomicI32::new(0), watch::Sender::new(Call::None), Mutex::default());
        Ok(RowSession { link, base, statements, pid, call, calling })
    }

    async fn holders(&self, resource: &Resource) -> Result<Vec<ClaimInfo>, Failure> {
        self.base.roll.holders(&self.base.pool, resource).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.base.roll.list(&self.base.pool, prefix, after, limit).await
    }

    async fn evict(&self, claim: &Claim) -> Result<Option<Vec<Resource>>, Failure> {
        let (id, name) = (claim.id.to_hex(), claim.resource.as_str());
        evicted(self.base.pool.ask(&self.statements.evict, &[&id, &name]).await)
    }

    async fn diagnose(&self, _: Duration) -> Vec<Finding> {
        let mut findings = crate::backend::diagnose::of_sessions(&self.base.server, &self.base.pool).await;
        findings.extend(self.room().cost(crate::backend::diagnose::connections(&self.base.pool).await));
        findings
    }
}

/// One connection, with a transaction while it holds.
#[derive(Debug)]
pub(crate) struct RowSession {
    link: Link,
    base: Arc<Base>,
    statements: Arc<Statements>,
    /// The server's process while there is a transaction, else 0.
    pid: AtomicI32,
    call: watch::Sender<Call>,
    /// Taken while the server is asked to end a statement: no other may begin then, or it would be the one
    /// that ends.
    calling: Mutex<()>,
}

/// The way to end a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// No call.
    None,
    /// A call is to be noted.
    Noted,
    /// The server is to be asked.
    Sent,
    /// A call was noted, and will be heeded.
    Heeded,
}

impl RowSession {
    /// Begins a transaction, locks the row, and enters the holder.
    async fn take(&self, ask: &Ask<'_>) -> Result<Taking, Refusal> {
        let word = draw_word().map_err(Refusal::Failed)?;
        let limit = self.base.limit() + ask.wait;
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL application_name = '{word}'; \
             SET LOCAL lock_timeout = {wait}; SET LOCAL statement_timeout = {limit}; {connection}",
            wait = ask.wait.as_millis(),
            limit = limit.as_millis(),
            connection = self.base.patience("LOCAL"),
        );
        self.link.run(&begin).await?;
        if !self.move_on(Call::Sent) {
            return Err(Refusal::LostRace);
        }
        let name = ask.claim.resource.as_str();
        let sql = self.statements.lock(ask.claim.share.is_exclusive(), ask.wait.is_zero());
        let answer = self.link.ask_within(sql, &[&name], ask.wait).await;
        _ = self.move_on(Call::Noted);
        drop(self.calling.lock().await);
        let rows = answer?;
        let Some(row) = rows.first() else { return Ok(Taking::NoRow) };
        let pid: i32 = read(row, 0).map_err(Refusal::Failed)?;
        self.pid.store(pid, Ordering::SeqCst);
        let Entry { id, name, key, weight, capacity, note } = Entry::of(ask.claim, String::new());
        let entering = [&id as &(dyn tokio_postgres::types::ToSql + Sync), &name, &key, &weight, &capacity];
        let mut entering = entering.to_vec();
        entering.extend([&note as &(dyn tokio_postgres::types::ToSql + Sync), &word, &pid]);
        // From another connection, whose transaction ends with the statement.
        let rows = self.base.pool.ask(&self.base.roll.enter, &entering).await?;
        let row = only(rows).map_err(Refusal::Failed)?;
        Ok(Taking::Taken(Answer::Taken(Some(fence(&row, 0).map_err(Refusal::Failed)?))))
    }

    /// Asks once, with what has to be made first.
    async fn lock_once(&self, ask: &Ask<'_>) -> Result<Answer, Failure> {
        for _ in 0..MAX_TRIES {
            let refusal = match self.take(ask).await {
                Ok(Taking::Taken(answer)) => return Ok(answer),
                Ok(Taking::NoRow) => {
                    self.end().await?;
                    if !self.make_row(ask.claim).await? {
                        return Ok(Answer::Busy);
                    }
                    continue;
                }
                Err(refusal) => refusal,
            };
            match refusal {
                Refusal::Failed(failure) if !self.link.is_open() => return Err(failure),
                Refusal::LostRace | Refusal::CalledBack(_) => {
                    self.end().await?;
                    return Ok(Answer::Busy);
                }
                Refusal::NoTable(failure) if self.base.config.sql.create == Create::Yes => {
                    tracing::warn!(%failure, "a table is gone: inspections no longer show the earlier holders");
                    self.end().await?;
                    crate::sql::schema::restore(&self.base.pool).await?;
                }
                Refusal::NoTable(failure) | Refusal::Failed(failure) => {
                    self.end().await?;
                    return Err(failure);
                }
            }
        }
        Ok(Answer::Busy)
    }

    /// Continues with the next part of a request; `false` if the request was called back.
    fn move_on(&self, call: Call) -> bool {
        self.call.send_if_modified(|present| {
            let wanted = *present != Call::Heeded;
            if wanted {
                *present = call;
            }
            wanted
        })
    }

    /// Ends the transaction, if there is one.
    async fn end(&self) -> Result<(), Failure> {
        self.pid.store(0, Ordering::SeqCst);
        let ended = self.link.run("ROLLBACK").await;
        // Nobody knows whether the row is still locked.
        ended.map_err(|refusal| Failure::unanswered(refusal.into_failure().to_string()))
    }

    /// Makes the row; `false` where a transaction that is still open has made it.
    async fn make_row(&self, claim: &Claim) -> Result<bool, Failure> {
        let name = claim.resource.as_str();
        match self.base.pool.ask(&self.statements.make, &[&name]).await {
            Ok(_) => Ok(true),
            Err(Refusal::LostRace) => Ok(false),
            Err(refusal) => Err(refusal.into_failure()),
        }
    }
}

#[async_trait]
impl Session for RowSession {
    async fn lock(&self, ask: &Ask<'_>) -> Result<Answer, Failure> {
        let _asking = Asking::begin(&self.call);
        if self.link.is_direct {
            return self.lock_once(ask).await;
        }
        let mut left = ask.wait;
        // At least once, and at most as often as there are slices in the wait.
        loop {
            let wait = left.min(SLICE);
            left = left.saturating_sub(SLICE);
            let answer = self.lock_once(&Ask { wait, ..*ask }).await?;
            if answer != Answer::Busy || left.is_zero() || *self.call.borrow() == Call::Heeded {
                return Ok(answer);
            }
        }
    }

    async fn unlock(&self, claim: &Claim, _: Sharing) -> Result<bool, Failure> {
        let had_it = self.pid.load(Ordering::SeqCst) != 0;
        self.end().await?;
        // The row counts no longer, since the transaction is over; the next task clears it away if this
        // fails.
        let id = claim.id.to_hex();
        if let Err(refusal) = self.base.pool.ask(&self.base.roll.strike, &[&id]).await {
            tracing::debug!(failure = %refusal.into_failure(), "the row of a lock that was released is left");
        }
        Ok(had_it)
    }

    async fn ping(&self) -> Result<(), Failure> {
        let (expected, pid) = (self.pid.load(Ordering::SeqCst), process(&self.link).await?);
        match expected == 0 || expected == pid {
            true => Ok(()),
            false => Err(Failure::unanswered("a pooler has put another session in the place of ours")),
        }
    }

    async fn cancel(&self) {
        let mut call = self.call.subscribe();
        let mut pause = FIRST_PAUSE;
        // Until the request is over; the caller limits that.
        loop {
            let calling = self.calling.lock().await;
            let present = *self.call.borrow();
            match present {
                Call::None => return,
                Call::Noted | Call::Heeded => _ = self.move_on(Call::Heeded),
                // It heeds the call when its slice of time is over.
                Call::Sent if !self.link.is_direct => _ = self.move_on(Call::Heeded),
                // A word that comes before the statement has begun is not heard, so it is said again.
                Call::Sent => self.link.cancel(&self.base.config).await,
            }
            drop(calling);
            let over = call.wait_for(|call| *call == Call::None);
            if tokio::time::timeout(pause, over).await.is_ok() {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn closed(&self) {
        self.link.closed().await;
    }

    fn is_open(&self) -> bool {
        self.link.is_open()
    }
}

enum Taking {
    Taken(Answer),
    NoRow,
}

/// A question, until it is dropped.
struct Asking<'a>(&'a watch::Sender<Call>);

impl<'a> Asking<'a> {
    fn begin(call: &'a watch::Sender<Call>) -> Asking<'a> {
        call.send_replace(Call::Noted);
        Asking(call)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.send_replace(Call::None);
    }
}

/// The statements for one table.
#[derive(Debug)]
struct Statements {
    locks: [Sql; 4],
    make: Sql,
    evict: Sql,
}

impl Statements {
    fn of(names: &Names) -> Statements {
        let rows = names.table("_rows");
        let lock = |name, how: &str| Sql {
            name,
            text: format!("SELECT pg_backend_pid() FROM {rows} WHERE name = $1 FOR {how}"),
            types: &[Type::TEXT],
        };
        let locks = [
            lock("lock", "UPDATE"),
            lock("try_lock", "UPDATE NOWAIT"),
            lock("share", "SHARE"),
            lock("try_share", "SHARE NOWAIT"),
        ];
        let make = format!(
            "WITH s AS MATERIALIZED (SELECT set_config('lock_timeout', '{MAKING}', true) AS limited) \
             INSERT INTO {rows} (name) SELECT $1 FROM s WHERE limited IS NOT NULL ON CONFLICT DO NOTHING"
        );
        // The word is of one transaction, which has the lock of one claim as long as it is open.
        let evict = evict(names, "true");
        Statements {
            locks,
            make: Sql { name: "make", text: make, types: &[Type::TEXT] },
            evict: Sql { name: "evict", text: evict, types: &[Type::TEXT, Type::TEXT] },
        }
    }

    fn lock(&self, exclusive: bool, at_once: bool) -> &Sql {
        &self.locks[2 * usize::from(!exclusive) + usize::from(at_once)]
    }
}

/// Tries of one question whose row or table is not there yet.
const MAX_TRIES: u32 = 3;
/// The time for which a statement waits in the server where a pooler is in between: some versions of
/// PgBouncer end with all their connections when a statement is cancelled.
const SLICE: Duration = Duration::from_millis(200);
/// Milliseconds for which the making of a row waits for another transaction that has made it.
const MAKING: u32 = 100;
/// The pause between two attempts to cancel a waiting statement; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(40);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
