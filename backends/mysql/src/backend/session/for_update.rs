//! Rows locked by open transactions: each lock has a connection of its own, and a waiter waits in the
//! server.
//!
//! Ground rules: what others are to see at once, and what a rollback must not take back, is written by
//! another connection. These servers do not notice that a waiter in them has left: a wait that is given up
//! costs its connection, which is ended from another one. A connection is known by a name that is drawn at
//! random and held as a named lock, because its number is used again when a server is restarted or another
//! one takes over.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::random;
use leasehold_backend::session::{Answer, Capacity, Holder, Session, SessionRequest, Sessions, Sharing};
use leasehold_core::{
    Claim, ClaimInfo, Clock, Failure, Fence, Finding, Profile, Resource, ResourceSummary, WaitMode,
};
use tokio::sync::Notify;

use crate::backend::session::{Base, claim_info};
use crate::config::MySqlConfig;
use crate::error::Refusal;
use crate::net::dial::{Flavour, only, read};
use crate::net::session::{IS_READ_ONLY, SessionLink, read_only};
use crate::sql::schema::{ROWS, ROWS_HELD};
use crate::sql::statements::{NOW, literal, utf8};

/// Rows of one table, locked by open transactions.
#[derive(Debug)]
pub(crate) struct ForUpdate {
    base: Arc<Base>,
    profile: Profile,
}

impl ForUpdate {
    pub(crate) async fn connect(config: MySqlConfig, clock: Arc<dyn Clock>) -> Result<ForUpdate, Failure> {
        let base = Base::connect(config, clock, ROWS_HELD).await?;
        let profile = base.server.session_profile(&base.pool.config, WaitMode::Blocks);
        Ok(ForUpdate { base: Arc::new(base), profile })
    }
}

#[async_trait]
impl Sessions for ForUpdate {
    type Session = RowSession;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn capacity(&self) -> Capacity {
        Capacity::One { sessions: self.base.pool.config.sql.transactions, option: "transactions=" }
    }

    fn answer_limit(&self) -> Duration {
        self.base.pool.config.sql.timeout
    }

    fn endpoints(&self) -> usize {
        self.base.pool.config.endpoints.len()
    }

    fn key(&self, resource: &Resource) -> String {
        resource.as_str().to_owned()
    }

    async fn open(&self) -> Result<RowSession, Failure> {
        let link = self.base.open().await?;
        let session_name = draw_session_name()?;
        let taken = link.run(&format!("SELECT GET_LOCK({}, 0)", utf8(&session_name))).await;
        let taken = taken.and_then(|rows| only(rows).and_then(|row| read(&row, 0)).map_err(Refusal::Failed));
        check_named_lock(taken.map_err(Refusal::into_failure)?)?;
        let rows = self.base.pool.config.names.table(ROWS);
        let (transaction, cancelled) = (AtomicU64::new(0), Notify::new());
        Ok(RowSession { link, base: self.base.clone(), rows, session_name, transaction, cancelled })
    }

    async fn holders(&self, resource: &Resource, _is_last: bool) -> Result<Option<Vec<ClaimInfo>>, Failure> {
        let query = format!(
            "SELECT 1, session, claim, note, seq, since FROM {} WHERE name = {} AND {IS_ALIVE}",
            self.base.holders_table,
            literal(resource.as_str())
        );
        let rows = self.base.query(&query).await?;
        rows.iter().map(|row| claim_info(row, resource, true)).collect::<Result<_, _>>().map(Some)
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
        self.base.list(IS_ALIVE, prefix, after, limit).await
    }

    async fn evict(&self, claim: &Claim) -> Result<Option<Vec<Resource>>, Failure> {
        let holder = format!(
            "SELECT session, word FROM {held} WHERE name = {name} AND claim = '{id}' AND {IS_ALIVE}",
            held = self.base.holders_table,
            name = literal(claim.resource.as_str()),
            id = claim.id.to_hex(),
        );
        let Some(row) = self.base.query(&holder).await?.pop() else { return Ok(None) };
        let (session, transaction): (u64, String) = (read(&row, 0)?, read(&row, 1)?);
        // The name is of one transaction, which has the lock of one claim as long as it is open.
        let is_ended = self.base.evict(&[&utf8(&transaction)], session).await?;
        Ok(is_ended.then(Vec::new))
    }

    async fn diagnose(&self, _: Duration) -> Vec<Finding> {
        let mut findings = crate::backend::diagnose::of_sessions(&self.base.server, &self.base.pool).await;
        findings.extend(self.capacity().cost(self.base.server.setting("max_connections").parse().ok()));
        findings
    }
}

/// One connection, with a transaction while it holds or waits.
#[derive(Debug)]
pub(crate) struct RowSession {
    link: SessionLink,
    base: Arc<Base>,
    /// The table whose rows are locked, quoted.
    rows: String,
    /// The name of the connection, as long as it lives.
    session_name: String,
    /// The number of its present or last transaction.
    transaction: AtomicU64,
    /// Notified when a request is cancelled.
    cancelled: Notify,
}

impl RowSession {
    /// Returns the name of the present transaction.
    fn transaction_name(&self) -> String {
        format!("{}-{}", self.session_name, self.transaction.load(Ordering::SeqCst))
    }

    /// Begins a transaction and locks the row, in one round trip; then enters the holder.
    async fn take(&self, request: &SessionRequest<'_>) -> Result<Taking, Refusal> {
        self.transaction.fetch_add(1, Ordering::SeqCst);
        // Whole seconds are what the server knows, and it looks once a second.
        let seconds = request.wait.as_secs_f64().ceil().max(1.0);
        let limit = Duration::from_secs_f64(seconds + 1.0);
        let mut settings = format!("SET SESSION innodb_lock_wait_timeout = {seconds}");
        if self.base.flavour == Flavour::MariaDb {
            let statement = limit + self.base.pool.config.sql.timeout;
            settings += &format!(", max_statement_time = {}", statement.as_secs_f64());
        }
        let statements = format!(
            "{settings}; SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION READ WRITE; \
             SELECT GET_LOCK({lock}, 0), {IS_READ_ONLY}; SELECT 1 FROM {rows} WHERE name = {name} FOR UPDATE{how}",
            lock = utf8(&self.transaction_name()),
            rows = self.rows,
            name = literal(request.claim.resource.as_str()),
            how = if request.wait.is_zero() { " NOWAIT" } else { "" },
        );
        let answered = self.link.run_within(&statements, limit).await?;
        let taken = answered.first().map_or(Ok(None), |row| read(row, 0));
        taken.and_then(check_named_lock).map_err(Refusal::Failed)?;
        let is_read_only = answered.first().map_or(Ok(0_u8), |row| read(row, 1)).map_err(Refusal::Failed)?;
        if is_read_only != 0 {
            return Err(Refusal::Failed(read_only()));
        }
        match answered.len() {
            1 => Ok(Taking::NoRow),
            _ => self.enter(request.claim).await.map(Taking::Taken),
        }
    }

    /// Enters the holder, and draws the fence, by another connection, whose transaction ends with the
    /// statement. A session that has ended before enters nothing, because another client may have the row
    /// by now; and the fence counts only if the session still exists after the draw.
    async fn enter(&self, claim: &Claim) -> Result<Fence, Refusal> {
        let (name, note) = (literal(claim.resource.as_str()), literal(claim.note.as_str()));
        let (id, transaction, session) = (claim.id.to_hex(), self.transaction_name(), self.link.number);
        let statements = format!(
            "SET @leasehold = COALESCE(IS_USED_LOCK({lock}) = {session}, 0); \
             INSERT INTO {held} (name, claim, note, word, session, seq, since) \
             SELECT {name}, '{id}', {note}, '{transaction}', {session}, LAST_INSERT_ID({NOW}), {NOW} FROM DUAL \
             WHERE @leasehold = 1 ON DUPLICATE KEY UPDATE claim = '{id}', note = {note}, word = '{transaction}', \
             session = {session}, seq = LAST_INSERT_ID(GREATEST(seq + 1, {NOW})), since = {NOW}; \
             SELECT @leasehold AND COALESCE(IS_USED_LOCK({lock}) = {session}, 0), LAST_INSERT_ID()",
            lock = utf8(&transaction),
            held = self.base.holders_table,
        );
        let row = only(self.base.pool.run(&statements).await?).map_err(Refusal::Failed)?;
        let is_alive: u8 = read(&row, 0).map_err(Refusal::Failed)?;
        if is_alive == 0 {
            return Err(Refusal::Failed(Failure::unanswered("the session ended when it had the row")));
        }
        Ok(Fence::new(0, read(&row, 1).map_err(Refusal::Failed)?, 0))
    }

    /// Requests the lock once, and creates what is missing first.
    async fn lock_once(&self, request: &SessionRequest<'_>) -> Result<Answer, Failure> {
        for tries in 1..=MAX_TRIES {
            let refusal = match self.take(request).await {
                Ok(Taking::Taken(fence)) => {
                    return Ok(Answer::Taken { fence: Some(fence), is_shown: true });
                }
                Ok(Taking::NoRow) => {
                    self.end().await?;
                    if !self.make_row(request).await? {
                        return Ok(Answer::Busy);
                    }
                    continue;
                }
                Err(refusal) => refusal,
            };
            match refusal {
                Refusal::Failed(failure) if !self.link.is_open() => return Err(failure),
                Refusal::LostRace | Refusal::RowLocked(_) => {
                    self.end().await?;
                    return Ok(Answer::Busy);
                }
                Refusal::NoTable(failure) if tries < MAX_TRIES => {
                    self.end().await?;
                    self.base.recreate_tables(failure).await?;
                }
                Refusal::NoTable(failure) | Refusal::Failed(failure) => {
                    self.end().await?;
                    return Err(failure);
                }
            }
        }
        Ok(Answer::Busy)
    }

    /// Makes the row; `false` where a transaction that is still open has made it.
    async fn make_row(&self, request: &SessionRequest<'_>) -> Result<bool, Failure> {
        let name = literal(request.claim.resource.as_str());
        let statement = format!("INSERT IGNORE INTO {} (name) VALUES ({name})", self.rows);
        match self.link.run_within(&statement, request.wait + LATE).await {
            Ok(_) => Ok(true),
            Err(Refusal::LostRace | Refusal::RowLocked(_)) => Ok(false),
            Err(refusal) => Err(refusal.into_failure()),
        }
    }

    /// Ends the transaction; `false` where the server says that it did not exist.
    async fn end(&self) -> Result<bool, Failure> {
        let ending = format!("ROLLBACK; SELECT RELEASE_LOCK({})", utf8(&self.transaction_name()));
        let ended = self.link.run(&ending).await;
        // It is not known whether the row is still locked.
        let rows = ended.map_err(|refusal| refusal.into_failure().into_unanswered())?;
        Ok(read::<Option<u8>>(&only(rows)?, 0)? == Some(1))
    }
}

#[async_trait]
impl Session for RowSession {
    async fn lock(&self, request: &SessionRequest<'_>) -> Result<Answer, Failure> {
        // It is also notified of a cancellation that arrives before it is first polled.
        let cancelled = self.cancelled.notified();
        let wait_guard = WaitGuard::of(self, request);
        tokio::select! {
            answer = self.lock_once(request) => {
                if self.link.is_open() {
                    wait_guard.disarm();
                }
                answer
            }
            () = cancelled => {
                self.link.close().await;
                wait_guard.end_wait().await;
                Ok(Answer::Busy)
            }
        }
    }

    async fn show(&self, _: &[Holder]) -> Result<(), Failure> {
        // They are shown when they are granted.
        Ok(())
    }

    async fn unlock(&self, _: &Claim, _: Sharing, _: bool) -> Result<bool, Failure> {
        // The row of the table of holders counts no longer, since the named lock of this transaction is gone.
        self.end().await
    }

    async fn ping(&self) -> Result<(), Failure> {
        self.link.ping().await
    }

    async fn cancel(&self) {
        // Later requests are not notified.
        self.cancelled.notify_waiters();
    }

    async fn closed(&self) {
        self.link.closed().await;
    }

    fn is_open(&self) -> bool {
        self.link.is_open()
    }
}

enum Taking {
    Taken(Fence),
    NoRow,
}

/// A request that may wait in the server, until it is answered. Dropped before, it has the server end the
/// connection, which would otherwise continue to wait for a lock that no task wants.
struct WaitGuard {
    base: Arc<Base>,
    /// The statement that ends the connection of the request, and no other.
    kill: Option<String>,
}

impl WaitGuard {
    fn of(session: &RowSession, request: &SessionRequest<'_>) -> WaitGuard {
        let kill = format!("KILL IS_USED_LOCK({})", utf8(&session.session_name));
        WaitGuard { base: session.base.clone(), kill: (!request.wait.is_zero()).then_some(kill) }
    }

    fn disarm(mut self) {
        self.kill = None;
    }

    /// Has the server end it now. Where that fails, the server's own limit ends the wait.
    async fn end_wait(mut self) {
        if let Some(kill) = self.kill.take() {
            kill_by(&self.base, &kill).await;
        }
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        let Some(kill) = self.kill.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let base = self.base.clone();
        runtime.spawn(async move { kill_by(&base, &kill).await });
    }
}

async fn kill_by(base: &Base, kill: &str) {
    match base.pool.run(kill).await {
        // The second has ended already.
        Ok(_) | Err(Refusal::LostRace) => {}
        Err(refusal) => {
            let failure = refusal.into_failure();
            tracing::debug!(%failure, "a wait that was given up is left to the server's own limit");
        }
    }
}

/// Checks that a named lock was taken.
fn check_named_lock(taken: Option<u8>) -> Result<(), Failure> {
    match taken {
        Some(1) => Ok(()),
        _ => Err(Failure::unavailable(
            "the server gave no named lock to know a session by, and did not say why",
        )),
    }
}

/// Returns a name that no other session, past or present, has.
fn draw_session_name() -> Result<String, Failure> {
    random::number().map(|number| format!("leasehold-{number:016x}"))
}

/// The condition that the transaction of a row of the table of holders is still open.
const IS_ALIVE: &str = "IS_USED_LOCK(CONVERT(word USING utf8mb4)) = session";
/// Tries of one request whose row or table does not exist yet.
const MAX_TRIES: u32 = 3;
/// The time by which a wait may be longer than was asked for, because the server counts whole seconds, and
/// looks once in one.
const LATE: Duration = Duration::from_secs(2);
