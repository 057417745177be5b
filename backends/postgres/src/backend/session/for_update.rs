//! Rows locked by open transactions: each lock has a connection of its own, and a waiter waits in the
//! server.
//!
//! Ground rules: everything that is set for a lock is set for its transaction, so that it works through a
//! pooler that keeps a session for no longer. What others are to see at once, and what must not be taken
//! back, is written by another connection.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::random;
use leasehold_backend::session::{Answer, Capacity, Holder, Session, SessionRequest, Sessions, Sharing};
use leasehold_core::{
    Backoff, Claim, ClaimInfo, Failure, Finding, Profile, Resource, ResourceSummary, WaitMode, doubled,
};
use tokio::sync::{Mutex, watch};
use tokio_postgres::types::Type;

use super::holders::{Entry, evict, evicted};
use super::{Base, draw_session_name, process};
use crate::config::{Create, Names, PostgresConfig};
use crate::error::Refusal;
use crate::net::dial::{Link, Sql, read};
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
        let link = base.dial().await?;
        if let Err(refusal) = base.holders_table.tidy(&link).await {
            base.recreate_tables(refusal).await?;
            base.holders_table.tidy(&link).await.map_err(Refusal::into_failure)?;
        }
        Ok(ForUpdate { base: Arc::new(base), statements, profile })
    }
}

#[async_trait]
impl Sessions for ForUpdate {
    type Session = RowSession;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn capacity(&self) -> Capacity {
        Capacity::One { sessions: self.base.config.sql.transactions, option: "transactions=" }
    }

    fn answer_limit(&self) -> Duration {
        self.base.config.sql.timeout
    }

    fn endpoints(&self) -> usize {
        self.base.config.endpoints.len()
    }

    fn key(&self, resource: &Resource) -> String {
        resource.as_str().to_owned()
    }

    async fn open(&self) -> Result<RowSession, Failure> {
        let link = self.base.dial().await?;
        let (base, statements) = (self.base.clone(), self.statements.clone());
        let (pid, cancelling) = (AtomicI32::new(0), Mutex::default());
        let request = watch::Sender::new(RequestState::Idle);
        Ok(RowSession { link, base, statements, pid, request, cancelling })
    }

    async fn holders(&self, resource: &Resource, _is_last: bool) -> Result<Option<Vec<ClaimInfo>>, Failure> {
        let holders = self.base.holders_table.holders(&self.base.pool, resource).await?;
        Ok(Some(holders.into_iter().map(|(_, info)| info).collect()))
    }

    async fn unshown(&self) -> Result<HashSet<String>, Failure> {
        // They are shown when they are granted.
        Ok(HashSet::new())
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
        let (id, name) = (claim.id.to_hex(), claim.resource.as_str());
        evicted(self.base.pool.query(&self.statements.evict, &[&id, &name]).await)
    }

    async fn diagnose(&self, _: Duration) -> Vec<Finding> {
        let mut findings = crate::backend::diagnose::of_sessions(&self.base.server, &self.base.pool).await;
        findings.extend(self.capacity().cost(crate::backend::diagnose::connections(&self.base.pool).await));
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
    request: watch::Sender<RequestState>,
    /// Taken while the server is asked to end a statement: no other may begin then, or it would be the one
    /// that ends.
    cancelling: Mutex<()>,
}

/// The state of a request, which decides how to cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// No request is under way.
    Idle,
    /// No statement waits in the server: the client itself notes that the request is cancelled.
    Local,
    /// A statement may wait in the server, which has to be asked to cancel it.
    InServer,
    /// The request was cancelled, and ends before its next statement.
    Cancelled,
}

impl RowSession {
    /// Begins a transaction, locks the row, and enters the holder.
    async fn take(&self, request: &SessionRequest<'_>) -> Result<Taking, Refusal> {
        let session_name = draw_session_name().map_err(Refusal::Failed)?;
        let limit = self.base.limit() + request.wait;
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL application_name = '{session_name}'; \
             SET LOCAL lock_timeout = {wait}; SET LOCAL statement_timeout = {limit}; {connection}",
            // Rounded up: zero would be no limit at all.
            wait = request.wait.as_nanos().div_ceil(1_000_000),
            limit = limit.as_millis(),
            connection = self.base.patience("LOCAL", self.link.version),
        );
        self.link.run(&begin).await?;
        if !self.advance(RequestState::InServer) {
            return Err(Refusal::LostRace);
        }
        let name = request.claim.resource.as_str();
        let sql = self.statements.lock(request.claim.share.is_exclusive(), request.wait.is_zero());
        let answer = self.link.query_within(sql, &[&name], request.wait).await;
        _ = self.advance(RequestState::Local);
        drop(self.cancelling.lock().await);
        let rows = answer?;
        let Some(row) = rows.first() else { return Ok(Taking::NoRow) };
        let pid: i32 = read(row, 0).map_err(Refusal::Failed)?;
        self.pid.store(pid, Ordering::SeqCst);
        let Entry { id, name, key, weight, capacity, note } = Entry::of(request.claim, String::new());
        let entering = [&id as &(dyn tokio_postgres::types::ToSql + Sync), &name, &key, &weight, &capacity];
        let mut entering = entering.to_vec();
        entering.extend([&note as &(dyn tokio_postgres::types::ToSql + Sync), &session_name, &pid]);
        // From another connection, whose transaction ends with the statement.
        let rows = self.base.pool.query(&self.base.holders_table.enter, &entering).await?;
        let Some(row) = rows.first() else {
            return Err(Refusal::Failed(Failure::unanswered("the session ended when it had the row")));
        };
        let fence = Some(fence(row, 0).map_err(Refusal::Failed)?);
        Ok(Taking::Taken(Answer::Taken { fence, is_shown: true }))
    }

    /// Requests the lock once, and creates what is missing first.
    async fn lock_once(&self, request: &SessionRequest<'_>) -> Result<Answer, Failure> {
        for _ in 0..MAX_TRIES {
            let refusal = match self.take(request).await {
                Ok(Taking::Taken(answer)) => return Ok(answer),
                Ok(Taking::NoRow) => {
                    self.end().await?;
                    if !self.make_row(request.claim).await? {
                        return Ok(Answer::Busy);
                    }
                    continue;
                }
                Err(refusal) => refusal,
            };
            match refusal {
                Refusal::Failed(failure) if !self.link.is_open() => return Err(failure),
                Refusal::LostRace | Refusal::Cancelled(_) => {
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

    /// Moves the request on to this state; `false` if it was cancelled.
    fn advance(&self, next: RequestState) -> bool {
        self.request.send_if_modified(|present| {
            let wanted = *present != RequestState::Cancelled;
            if wanted {
                *present = next;
            }
            wanted
        })
    }

    /// Ends the transaction, if there is one.
    async fn end(&self) -> Result<(), Failure> {
        self.pid.store(0, Ordering::SeqCst);
        let ended = self.link.run("ROLLBACK").await;
        // It is not known whether the row is still locked.
        ended.map_err(|refusal| refusal.into_failure().into_unanswered())
    }

    /// Makes the row; `false` where a transaction that is still open has made it.
    async fn make_row(&self, claim: &Claim) -> Result<bool, Failure> {
        let name = claim.resource.as_str();
        match self.base.pool.query(&self.statements.make, &[&name]).await {
            Ok(_) => Ok(true),
            Err(Refusal::LostRace) => Ok(false),
            Err(refusal) => Err(refusal.into_failure()),
        }
    }
}

#[async_trait]
impl Session for RowSession {
    async fn lock(&self, request: &SessionRequest<'_>) -> Result<Answer, Failure> {
        let _request = RequestScope::begin(&self.request);
        if self.link.is_direct {
            return self.lock_once(request).await;
        }
        let mut left = request.wait;
        // At least once, and at most as often as there are slices in the wait.
        loop {
            let wait = left.min(SLICE);
            left = left.saturating_sub(SLICE);
            let answer = self.lock_once(&SessionRequest { wait, ..*request }).await?;
            if answer != Answer::Busy || left.is_zero() || *self.request.borrow() == RequestState::Cancelled {
                return Ok(answer);
            }
        }
    }

    async fn show(&self, _: &[Holder]) -> Result<(), Failure> {
        // They are shown when they are granted.
        Ok(())
    }

    async fn unlock(&self, claim: &Claim, _: Sharing, _: bool) -> Result<bool, Failure> {
        let had_it = self.pid.load(Ordering::SeqCst) != 0;
        self.end().await?;
        // The row counts no longer, since the transaction is over; the next task removes it if this fails.
        let id = claim.id.to_hex();
        if let Err(refusal) = self.base.pool.query(&self.base.holders_table.delete, &[&id]).await {
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
        let mut request = self.request.subscribe();
        let (mut backoff, mut attempts) = (Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), 0);
        // Until the request is over; the caller limits that.
        loop {
            let cancelling = self.cancelling.lock().await;
            let present = *self.request.borrow();
            match present {
                RequestState::Idle => return,
                RequestState::Local | RequestState::Cancelled => _ = self.advance(RequestState::Cancelled),
                // The request ends when its slice of time is over.
                RequestState::InServer if !self.link.is_direct => _ = self.advance(RequestState::Cancelled),
                // A cancellation that arrives before the statement has begun has no effect, so it is
                // repeated.
                // One over a slow link, with TLS, takes several round trips: the limit grows, or none would ever
                // arrive. One that hangs must not delay the end of a statement that was answered meanwhile.
                RequestState::InServer => {
                    let cancelled = self.link.cancel(&self.base.config);
                    let limit = doubled(CANCEL_LIMIT, self.base.config.sql.timeout, attempts);
                    let answered = async {
                        drop(request.wait_for(|state| *state != RequestState::InServer).await);
                        tokio::time::sleep(CANCEL_LIMIT).await;
                    };
                    tokio::select! {
                        _ = tokio::time::timeout(limit, cancelled) => {}
                        () = answered => {}
                    }
                    attempts += 1;
                }
            }
            drop(cancelling);
            let over = request.wait_for(|state| *state == RequestState::Idle);
            if tokio::time::timeout(backoff.failed(random::chance()), over).await.is_ok() {
                return;
            }
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

/// The scope of a request, which ends when it is dropped.
struct RequestScope<'a>(&'a watch::Sender<RequestState>);

impl<'a> RequestScope<'a> {
    fn begin(request: &'a watch::Sender<RequestState>) -> RequestScope<'a> {
        request.send_replace(RequestState::Local);
        RequestScope(request)
    }
}

impl Drop for RequestScope<'_> {
    fn drop(&mut self) {
        self.0.send_replace(RequestState::Idle);
    }
}

/// The statements for the table of rows that transactions keep locked. None of them is for a release or a
/// renewal: a release is a `ROLLBACK`, and a renewal asks for the process of the server (`process`).
#[derive(Debug)]
struct Statements {
    /// Lock the row of a name in a transaction: `lock` of a session. [`Statements::lock`] chooses one.
    locks: [Sql; 4],
    /// Makes the row of a name, where a `lock` found none.
    make: Sql,
    /// Ends the connection that holds a claim: `evict`, for `leasehold break`.
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
        // The name is of one transaction, which has the lock of one claim as long as it is open.
        let evict = evict(names, "true");
        Statements {
            locks,
            make: Sql { name: "make", text: make, types: &[Type::TEXT] },
            evict: Sql { name: "evict", text: evict, types: &[Type::TEXT, Type::TEXT] },
        }
    }

    /// Returns the statement that locks the row alone or with others, and waits for it or not.
    fn lock(&self, exclusive: bool, at_once: bool) -> &Sql {
        &self.locks[2 * usize::from(!exclusive) + usize::from(at_once)]
    }
}

/// Tries of one request whose row or table does not exist yet.
const MAX_TRIES: u32 = 3;
/// The time for which a statement waits in the server where a pooler is in between: some versions of
/// PgBouncer end with all their connections when a statement is cancelled.
const SLICE: Duration = Duration::from_millis(200);
/// Milliseconds for which the creation of a row waits for another transaction that has created it.
const MAKING: u32 = 100;
/// The time limit of the first attempt to cancel a waiting statement, which doubles; and of one whose statement has
/// ended.
const CANCEL_LIMIT: Duration = Duration::from_millis(500);
/// The pause between two attempts to cancel a waiting statement; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(40);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
