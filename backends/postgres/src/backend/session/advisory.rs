//! Advisory locks: all locks of a client are held by one session.
//!
//! A lock that is held alone costs the server one statement that writes nothing. The row that shows its holder
//! follows from another connection, if it is held for longer than a moment; that of readers is written at
//! once.
//!
//! Ground rules: such a lock is not taken back when its statement fails, so a statement that failed is
//! followed by one that gives the lock back, and a session of which that is not known is closed. A session
//! has one user: it is marked with a name when it is opened, is not opened where it has a mark, and each
//! statement changes nothing in a session of another mark. A pooler that shares sessions against what was
//! found out can therefore not make two holders of one lock.

mod statements;
mod table_gate;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::session::{
    Answer, Capacity, Holder, Session, SessionRequest, Sessions, Sharing, collision, foreign_holder,
};
use leasehold_backend::sql::signed;
use leasehold_core::{
    Claim, ClaimId, ClaimInfo, Effect, Failure, FailureKind, Finding, Note, Profile, Resource,
    ResourceSummary, Share, WaitMode,
};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql};

use super::fences::{FenceStatements, Fences};
use super::holders::{Entry, evicted};
use super::key::Key;
use super::{Base, draw_session_name};
use crate::config::{Create, PostgresConfig};
use crate::error::Refusal;
use crate::net::dial::{Link, only, read};
use crate::net::server::SessionPath;
use statements::Statements;
use table_gate::{TableGate, table_wait};

/// Advisory locks of one database.
#[derive(Debug)]
pub(crate) struct Advisory {
    base: Arc<Base>,
    statements: Arc<(Statements, FenceStatements)>,
    profile: Profile,
}

impl Advisory {
    pub(crate) async fn connect(config: PostgresConfig) -> Result<Advisory, Failure> {
        let base = Base::connect(config).await?;
        if base.server.sessions == SessionPath::Shared {
            return Err(shared());
        }
        let names = &base.config.names;
        let statements = Arc::new((Statements::of(names), FenceStatements::of(names)));
        let profile = base.server.session_profile(&base.config, WaitMode::Polls);
        Ok(Advisory { base: Arc::new(base), statements, profile })
    }
}

#[async_trait]
impl Sessions for Advisory {
    type Session = AdvisorySession;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn capacity(&self) -> Capacity {
        Capacity::Many
    }

    fn answer_limit(&self) -> Duration {
        self.base.config.sql.timeout
    }

    fn key(&self, resource: &Resource) -> String {
        Key::of(resource.as_str()).text()
    }

    async fn open(&self) -> Result<AdvisorySession, Failure> {
        let link = self.base.dial().await?;
        if self.base.server.sessions == SessionPath::Direct && !link.is_direct {
            return Err(Failure::unavailable(
                "something is between this client and the server, and nothing was when it connected: connect anew",
            ));
        }
        let (statements, fences) = &*self.statements;
        let session_name = draw_session_name()?;
        let marked = link.query(&statements.mark, &[&session_name]).await.map_err(Refusal::into_failure)?;
        let Some(marked) = marked.first() else { return Err(shared()) };
        let pid = read(marked, 1)?;
        // No statement of this session has to be waited for, but one that says so itself.
        let limit = self.base.limit();
        let settings = format!(
            "SET application_name = '{session_name}'; SET idle_session_timeout = {patience}; SET statement_timeout = {limit}; \
             SET lock_timeout = {table_wait}; SET default_transaction_isolation = 'read committed'; SET synchronous_commit = off; {connection}",
            patience = self.base.config.sql.server_timeout().as_millis(),
            limit = limit.as_millis(),
            table_wait = table_wait(limit).as_millis(),
            connection = self.base.patience("SESSION", link.version),
        );
        link.run(&settings).await.map_err(Refusal::into_failure)?;
        if let Err(refusal) = self.base.holders_table.clear(&link).await {
            self.base.recreate_tables(refusal).await?;
        }
        let fences = match Fences::open(&link, fences).await {
            Ok(fences) => fences,
            Err(refusal) => {
                self.base.recreate_tables(refusal).await?;
                Fences::open(&link, fences).await.map_err(Refusal::into_failure)?
            }
        };
        let (base, statements) = (self.base.clone(), self.statements.clone());
        let (gate, leftover) = (TableGate::new(), Arc::default());
        Ok(AdvisorySession { link, session_name, pid, fences, gate, leftover, base, statements })
    }

    async fn holders(&self, resource: &Resource, is_last: bool) -> Result<Option<Vec<ClaimInfo>>, Failure> {
        let (wide, one, high, low) = Key::of(resource.as_str()).numbers();
        let pool = &self.base.pool;
        let rows = pool.query_retrying(&self.statements.0.key_holders, &[&wide, &one, &high, &low]).await;
        let processes = rows.map_err(Refusal::into_failure)?;
        let processes: Vec<Process> = processes.iter().map(Process::of).collect::<Result<_, _>>()?;
        let shown = self.base.holders_table.holders(pool, resource).await?;
        let is_shown = |process: &Process| shown.iter().any(|(pid, _)| *pid == process.pid);
        if !is_last && processes.iter().any(|process| process.is_ours && !is_shown(process)) {
            return Ok(None);
        }
        // Another program may hold it, or a client that could not write its row.
        let all_shown = shown.iter().map(|(_, info)| info.clone());
        let others = processes.iter().filter(|process| !is_shown(process)).map(Process::claim);
        Ok(Some(if shown.is_empty() { others.collect() } else { all_shown.collect() }))
    }

    async fn unshown(&self) -> Result<HashSet<String>, Failure> {
        let rows = self.base.pool.query_retrying(&self.statements.0.unshown, &[]).await;
        let rows = rows.map_err(Refusal::into_failure)?;
        let name = |row| Ok(format!("{} of {}", read::<&str>(row, 1)?, read::<i32>(row, 0)?));
        rows.iter().map(name).collect()
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.base.holders_table.list(&self.base.pool, prefix, after, limit).await
    }

    async fn evict(&self, claim: &Claim) -> Result<Option<Vec<Resource>>, Failure> {
        if let Some(pid) = process_of_foreign_claim(claim.id) {
            return Err(foreign_holder(&format!("process {pid} of the server")));
        }
        let (wide, one, high, low) = Key::of(claim.resource.as_str()).numbers();
        let (id, name) = (claim.id.to_hex(), claim.resource.as_str());
        evicted(self.base.pool.query(&self.statements.0.evict, &[&id, &name, &wide, &one, &high, &low]).await)
    }

    async fn diagnose(&self, _: Duration) -> Vec<Finding> {
        crate::backend::diagnose::of_sessions(&self.base.server, &self.base.pool).await
    }
}

/// One session with its locks.
#[derive(Debug)]
pub(crate) struct AdvisorySession {
    link: Link,
    /// The mark of the server's session: one without it holds nothing of ours.
    session_name: String,
    /// Its process of the server.
    pid: i32,
    fences: Fences,
    /// The gate of the statements of this session that use the table of holders.
    gate: TableGate,
    leftover: Arc<Leftover>,
    base: Arc<Base>,
    statements: Arc<(Statements, FenceStatements)>,
}

/// Rows of released locks that could not be removed yet.
#[derive(Debug, Default)]
struct Leftover {
    claims: Mutex<Vec<String>>,
    /// One task removes them at a time, so that they take one connection.
    turn: tokio::sync::Mutex<()>,
}

impl Leftover {
    fn claims(&self) -> MutexGuard<'_, Vec<String>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdvisorySession {
    async fn take(&self, request: &SessionRequest<'_>) -> Result<Answer, Refusal> {
        let SessionRequest { claim, sharing, .. } = request;
        let key = Key::of(claim.resource.as_str());
        let (statements, fences) = &*self.statements;
        let (wide, one, high, low) = key.numbers();
        let is_alone = *sharing == Sharing::None && claim.share.is_exclusive();
        // Before the number of the fence is drawn.
        let known = self.fences.known();
        let answer = if is_alone {
            self.link.query(&statements.take_alone, &[&wide, &one, &high, &low, &self.session_name]).await?
        } else {
            let sql = if *sharing == Sharing::Readers { &statements.join } else { &statements.take_shared };
            let Entry { id, name, key, weight, capacity, note } = &Entry::of(claim, key.text());
            let (session, epoch) = (&self.session_name, known.epoch());
            let parameters: &[&(dyn ToSql + Sync)] =
                &[id, name, key, weight, capacity, note, &wide, &one, &high, &low, session, &epoch];
            self.gate.pass(self.link.query(sql, parameters)).await?
        };
        match only(answer).and_then(|row| in_ours(&row)).map_err(Refusal::Failed)? {
            0 => self.refuse(claim, key).await,
            number => {
                let fence = match known.fence(number) {
                    Some(fence) => fence,
                    None => {
                        let fence = self.fences.draw(&self.link, fences, known).await?;
                        if !is_alone {
                            let (id, epoch, seq) =
                                (claim.id.to_hex(), signed(fence.epoch), signed(fence.seq));
                            let parameters: &[&(dyn ToSql + Sync)] = &[&id, &epoch, &seq];
                            self.gate.pass(self.link.query(&statements.renumber, parameters)).await?;
                        }
                        fence
                    }
                };
                Ok(Answer::Taken { fence: Some(fence), is_shown: !is_alone })
            }
        }
    }

    /// Answers for a lock that another session has: an error where it has it under another name.
    async fn refuse(&self, claim: &Claim, key: Key) -> Result<Answer, Refusal> {
        let (key, name) = (key.text(), claim.resource.as_str());
        let parameters: &[&(dyn ToSql + Sync)] = &[&key, &name];
        let rows = match self.gate.pass(self.link.query(&self.statements.0.namesake, parameters)).await {
            // The next request looks for the other name.
            Err(Refusal::LostRace) => return Ok(Answer::Busy),
            rows => rows?,
        };
        match rows.first() {
            None => Ok(Answer::Busy),
            Some(row) => {
                let other: String = read(row, 0).map_err(Refusal::Failed)?;
                Err(Refusal::Failed(collision(&claim.resource, &other)))
            }
        }
    }

    /// Releases a lock whose statement failed, in case it was taken.
    async fn put_back(&self, request: &SessionRequest<'_>) -> Result<(), Failure> {
        let is_exclusive = request.claim.share.is_exclusive();
        if !is_exclusive {
            let id = request.claim.id.to_hex();
            match self.remove_row(&id).await {
                // Without the table no row exists.
                Ok(()) | Err(Refusal::NoTable(_)) => {}
                Err(refusal) => self.remove_row_later(id, refusal.into_failure()),
            }
        }
        if request.sharing == Sharing::Readers {
            return Ok(());
        }
        let freed = self.free(request.claim, None).await;
        freed.map(drop).map_err(|refusal| refusal.into_failure().into_unanswered())
    }

    /// Frees a lock, and removes the row of this claim before that. Returns `false` if this session did not have it.
    async fn free(&self, claim: &Claim, row: Option<&str>) -> Result<bool, Refusal> {
        let (wide, one, high, low) = Key::of(claim.resource.as_str()).numbers();
        let sql = self.statements.0.free(claim.share.is_exclusive(), row.is_some());
        let parameters: [&(dyn ToSql + Sync); 6] = [&wide, &one, &high, &low, &self.session_name, &row];
        let rows = self.link.query(sql, &parameters[..sql.types.len()]).await?;
        only(rows).and_then(|row| in_ours(&row)).map_err(Refusal::Failed)
    }

    async fn remove_row(&self, id: &str) -> Result<(), Refusal> {
        self.gate.pass(self.link.query(&self.base.holders_table.delete, &[&id])).await.map(drop)
    }

    /// Removes the row of a lock that was released, by another connection. If that fails, too, the row is shown until
    /// this session ends.
    fn remove_row_later(&self, id: String, failure: Failure) {
        tracing::warn!(%failure, "a lock was released, and the row that shows its holder could not be removed");
        self.leftover.claims().push(id);
        let (base, leftover) = (self.base.clone(), self.leftover.clone());
        drop(leasehold_machine::spawn(async move {
            let _turn = leftover.turn.lock().await;
            let claims = std::mem::take(&mut *leftover.claims());
            // Another task may have removed it with its own.
            if claims.is_empty() {
                return;
            }
            if let Err(refusal) = base.pool.query(&base.holders_table.delete_many, &[&claims]).await {
                tracing::warn!(failure = %refusal.into_failure(), "rows of released locks are still there");
            }
        }));
    }
}

#[async_trait]
impl Session for AdvisorySession {
    async fn lock(&self, request: &SessionRequest<'_>) -> Result<Answer, Failure> {
        for is_last in [false, true] {
            let refusal = match self.take(request).await {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            match refusal {
                // The server gave nothing, and said why.
                Refusal::Failed(failure) if failure.kind == FailureKind::Foreign => return Err(failure),
                Refusal::Failed(failure) if failure.effect == Effect::Unknown => return Err(failure),
                // The table of holders is locked, as a rule, and whether the lock is free is not known.
                Refusal::LostRace => {
                    self.put_back(request).await?;
                    return Err(refusal.into_failure());
                }
                Refusal::NoTable(failure) if !is_last && self.base.config.sql.create == Create::Yes => {
                    tracing::warn!(%failure, "a table is gone: inspections no longer show the earlier holders");
                    self.put_back(request).await?;
                    crate::sql::schema::restore(&self.base.pool).await?;
                }
                Refusal::NoTable(failure) | Refusal::Cancelled(failure) | Refusal::Failed(failure) => {
                    self.put_back(request).await?;
                    return Err(failure);
                }
            }
        }
        Ok(Answer::Busy)
    }

    async fn show(&self, holders: &[Holder]) -> Result<(), Failure> {
        let row = |holder: &Holder| {
            let Holder { claim, fence, held_for } = holder;
            let key = Key::of(claim.resource.as_str()).text();
            (Entry::of(claim, key), fence.unwrap_or_default(), *held_for)
        };
        let holders: Vec<_> = holders.iter().map(row).collect();
        let (Base { pool, holders_table, .. }, session, pid) = (&*self.base, &*self.session_name, self.pid);
        if let Err(refusal) = holders_table.show(pool, session, pid, &holders).await {
            self.base.recreate_tables(refusal).await?;
            holders_table.show(pool, session, pid, &holders).await.map_err(Refusal::into_failure)?;
        }
        Ok(())
    }

    async fn unlock(&self, claim: &Claim, sharing: Sharing, is_shown: bool) -> Result<bool, Failure> {
        let id = claim.id.to_hex();
        let answer = match sharing {
            Sharing::Readers => self.remove_row(&id).await.map(|()| true),
            Sharing::None if is_shown => self.gate.pass(self.free(claim, Some(&id))).await,
            Sharing::None => self.free(claim, None).await,
        };
        match answer {
            // The table of holders is locked, or gone. The lock decides, and its row only informs.
            Err(refusal) if is_shown && refusal.is_without_effect() => {
                let was_there = match sharing {
                    Sharing::Readers => true,
                    Sharing::None => self.free(claim, None).await.map_err(Refusal::into_failure)?,
                };
                self.remove_row_later(id, refusal.into_failure());
                Ok(was_there)
            }
            answer => answer.map_err(Refusal::into_failure),
        }
    }

    async fn ping(&self) -> Result<(), Failure> {
        let answer = self.link.query(&self.statements.0.is_ours, &[&self.session_name]).await;
        only(answer.map_err(Refusal::into_failure)?).and_then(|row| in_ours::<bool>(&row)).map(drop)
    }

    async fn cancel(&self) {
        // Nothing here waits.
    }

    async fn closed(&self) {
        self.link.closed().await;
    }

    fn is_open(&self) -> bool {
        self.link.is_open()
    }
}

/// A process of the server that has a lock.
struct Process {
    pid: i32,
    is_shared: bool,
    application: String,
    /// `true` if it is a session of leasehold.
    is_ours: bool,
}

impl Process {
    fn of(row: &Row) -> Result<Process, Failure> {
        let is_shared = read::<&str>(row, 1)? == "ShareLock";
        Ok(Process { pid: read(row, 0)?, is_shared, application: read(row, 2)?, is_ours: read(row, 3)? })
    }

    /// Returns a claim for a holder of which there is no row: it is another program, as a rule.
    fn claim(&self) -> ClaimInfo {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&self.pid.to_be_bytes());
        let share = if self.is_shared { Share::READER } else { Share::WRITER };
        let who = if self.is_ours { "leasehold, without a row that shows it" } else { "not by leasehold" };
        let note = format!("{who}: process {} of the server, {:?}", self.pid, self.application);
        ClaimInfo::new(ClaimId::from_bytes(id), share).note(Note::clipped(&note))
    }
}

/// Returns the process of a claim that [`Process::claim`] made.
fn process_of_foreign_claim(id: ClaimId) -> Option<i32> {
    let (pid, rest) = id.as_bytes().split_first_chunk()?;
    rest.iter().all(|byte| *byte == 0).then(|| i32::from_be_bytes(*pid))
}

/// Reads the first column of a statement that answers nothing in a session of another mark.
fn in_ours<'a, T: FromSql<'a>>(row: &'a Row) -> Result<T, Failure> {
    read::<Option<T>>(row, 0)?
        .ok_or_else(|| Failure::unanswered("a pooler has put another session in the place of ours"))
}

fn shared() -> Failure {
    Failure::new(
        FailureKind::Unsupported,
        Effect::None,
        "a pooler in between gives one session to many clients, so an advisory lock would exclude nobody: use \
         method=row, connect to the server itself, or use a pool in session mode that resets what it gives on",
    )
}
