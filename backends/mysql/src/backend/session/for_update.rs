//! Rows locked by open transactions: each lock has a connection of its own, and a waiter waits in the
//! server.
//!
//! Ground rules: what others are to see at once, and what a rollback must not take back, is written by
//! another connection. These servers do not notice that a waiter in them has left: a wait that is given up
//! costs its connection, which is ended from another one. A connection is known by a word that is drawn at
//! random and held as a named lock, because its number comes again when a server is restarted or another
//! one takes over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::session::{Answer, Ask, Capacity, Session, Sessions, Sharing};
use leasehold_core::{
    Claim, ClaimInfo, Clock, Failure, Fence, Finding, Profile, Resource, ResourceSummary, WaitMode,
};
use tokio::sync::Notify;

use crate::backend::session::{Base, standing};
use crate::config::MySqlConfig;
use crate::error::Refusal;
use crate::net::dial::{Flavour, only, read};
use crate::net::session::Held;
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

    fn room(&self) -> Capacity {
        Capacity::One { sessions: self.base.pool.config.sql.transactions, option: "transactions=" }
    }

    fn answer_limit(&self) -> Duration {
        self.base.pool.config.sql.timeout
    }

    fn key(&self, resource: &Resource) -> String {
        resource.as_str().to_owned()
    }

    async fn open(&self) -> Result<RowSession, Failure> {
        let held = self.base.open().await?;
        let word = draw_word()?;
        let taken = held.run(&format!("SELECT GET_LOCK({}, 0)", utf8(&word))).await;
        let taken = taken.and_then(|rows| only(rows).and_then(|row| read(&row, 0)).map_err(Refusal::Failed));
        check_word(taken.map_err(Refusal::into_failure)?)?;
        let rows = self.base.pool.config.names.table(ROWS);
        let (turn, called_back) = (AtomicU64::new(0), Notify::new());
        Ok(RowSession { held, base: self.base.clone(), rows, word, turn, called_back })
    }

    async fn holders(&self, resource: &Resource) -> Result<Vec<ClaimInfo>, Failure> {
        let question = format!(
            "SELECT 1, session, claim, note, seq, since FROM {} WHERE name = {} AND {IS_ALIVE}",
            self.base.held,
            literal(resource.as_str())
        );
        let rows = self.base.look(&question).await?;
        rows.iter().map(|row| standing(row, resource, true)).collect()
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
            held = self.base.held,
            name = literal(claim.resource.as_str()),
            id = claim.id.to_hex(),
        );
        let Some(row) = self.base.look(&holder).await?.pop() else { return Ok(None) };
        let (session, word): (u64, String) = (read(&row, 0)?, read(&row, 1)?);
        // The word is of one transaction, which has the lock of one claim as long as it is open.
        let is_ended = self.base.evict(&utf8(&word), session).await?;
        Ok(is_ended.then(Vec::new))
    }

    async fn diagnose(&self, _: Duration) -> Vec<Finding> {
        let mut findings = crate::backend::diagnose::of_sessions(&self.base.server, &self.base.pool).await;
        findings.extend(self.room().cost(self.base.server.setting("max_connections").parse().ok()));
        findings
    }
}

/// One connection, with a transaction while it holds or waits.
#[derive(Debug)]
pub(crate) struct RowSession {
    held: Held,
    base: Arc<Base>,
    /// The table whose rows are locked, quoted.
    rows: String,
    /// The name of the connection, as long as it lives.
    word: String,
    /// The number of its present or last transaction.
    turn: AtomicU64,
    /// Notified when a request is called back.
    called_back: Notify,
}

impl RowSession {
    /// Returns the name of the present transaction.
    fn word_of_turn(&self) -> String {
        format!("{}-{}", self.word, self.turn.load(Ordering::SeqCst))
    }

    /// Begins a transaction and locks the row, in one round trip; then enters the holder.
    async fn take(&self, ask: &Ask<'_>) -> Result<Taking, Refusal> {
        self.turn.fetch_add(1, Ordering::SeqCst);
        // Whole seconds are what the server knows, and it looks once a second.
        let seconds = ask.wait.as_secs_f64().ceil().max(1.0);
        let limit = Duration::from_secs_f64(seconds + 1.0);
        let mut settings = format!("SET SESSION innodb_lock_wait_timeout = {seconds}");
        if self.base.flavour == Flavour::MariaDb {
            let statement = limit + self.base.pool.config.sql.timeout;
            settings += &format!(", max_statement_time = {}", statement.as_secs_f64());
        }
        let statements = format!(
            "{settings}; SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION READ WRITE; \
             SELECT GET_LOCK({word}, 0); SELECT 1 FROM {rows} WHERE name = {name} FOR UPDATE{how}",
            word = utf8(&self.word_of_turn()),
            rows = self.rows,
            name = literal(ask.claim.resource.as_str()),
            how = if ask.wait.is_zero() { " NOWAIT" } else { "" },
        );
        let answered = self.held.run_within(&statements, limit).await?;
        let word = answered.first().map_or(Ok(None), |row| read(row, 0));
        word.and_then(check_word).map_err(Refusal::Failed)?;
        match answered.len() {
            1 => Ok(Taking::NoRow),
            _ => self.enter(ask.claim).await.map(Taking::Taken),
        }
    }

    /// Enters the holder, and draws the fence, by another connection, whose transaction ends with the
    /// statement. A session that has ended before enters nothing, because another client may have the row
    /// by now; and the fence counts only if the session still exists after the draw.
    async fn enter(&self, claim: &Claim) -> Result<Fence, Refusal> {
        let (name, note) = (literal(claim.resource.as_str()), literal(claim.note.as_str()));
        let (id, word, session) = (claim.id.to_hex(), self.word_of_turn(), self.held.number);
        let statements = format!(
            "SET @leasehold = COALESCE(IS_USED_LOCK({lock}) = {session}, 0); \
             INSERT INTO {held} (name, claim, note, word, session, seq, since) \
             SELECT {name}, '{id}', {note}, '{word}', {session}, LAST_INSERT_ID({NOW}), {NOW} FROM DUAL \
             WHERE @leasehold = 1 ON DUPLICATE KEY UPDATE claim = '{id}', note = {note}, word = '{word}', \
             session = {session}, seq = LAST_INSERT_ID(GREATEST(seq + 1, {NOW})), since = {NOW}; \
             SELECT @leasehold AND COALESCE(IS_USED_LOCK({lock}) = {session}, 0), LAST_INSERT_ID()",
            lock = utf8(&word),
            held = self.base.held,
        );
        let row = only(self.base.pool.run(&statements).await?).map_err(Refusal::Failed)?;
        let is_alive: u8 = read(&row, 0).map_err(Refusal::Failed)?;
        if is_alive == 0 {
            return Err(Refusal::Failed(Failure::unanswered("the session ended when it had the row")));
        }
        Ok(Fence::new(0, read(&row, 1).map_err(Refusal::Failed)?, 0))
    }

    /// Asks once, with what has to be made first.
    async fn ask(&self, ask: &Ask<'_>) -> Result<Answer, Failure> {
        for tries in 1..=MAX_TRIES {
            let refusal = match self.take(ask).await {
                Ok(Taking::Taken(fence)) => return Ok(Answer::Taken(Some(fence))),
                Ok(Taking::NoRow) => {
                    self.end().await?;
                    if !self.make_row(ask).await? {
                        return Ok(Answer::Busy);
                    }
                    continue;
                }
                Err(refusal) => refusal,
            };
            match refusal {
                Refusal::Failed(failure) if !self.held.is_open() => return Err(failure),
                Refusal::LostRace | Refusal::Occupied(_) => {
                    self.end().await?;
                    return Ok(Answer::Busy);
                }
                Refusal::NoTable(failure) if tries < MAX_TRIES => {
                    self.end().await?;
                    self.base.begin_anew(failure).await?;
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
    async fn make_row(&self, ask: &Ask<'_>) -> Result<bool, Failure> {
        let name = literal(ask.claim.resource.as_str());
        let statement = format!("INSERT IGNORE INTO {} (name) VALUES ({name})", self.rows);
        match self.held.run_within(&statement, ask.wait + LATE).await {
            Ok(_) => Ok(true),
            Err(Refusal::LostRace | Refusal::Occupied(_)) => Ok(false),
            Err(refusal) => Err(refusal.into_failure()),
        }
    }

    /// Ends the transaction; `false` where the server says that there was none of this turn.
    async fn end(&self) -> Result<bool, Failure> {
        let ending = format!("ROLLBACK; SELECT RELEASE_LOCK({})", utf8(&self.word_of_turn()));
        let ended = self.held.run(&ending).await;
        // Nobody knows whether the row is still locked.
        let rows = ended.map_err(|refusal| Failure::unanswered(refusal.into_failure().to_string()))?;
        Ok(read::<Option<u8>>(&only(rows)?, 0)? == Some(1))
    }
}

#[async_trait]
impl Session for RowSession {
    async fn lock(&self, ask: &Ask<'_>) -> Result<Answer, Failure> {
        // It is also notified of a call that comes before it is first polled.
        let called_back = self.called_back.notified();
        let leaving = Leaving::of(self, ask);
        tokio::select! {
            answer = self.ask(ask) => {
                if self.held.is_open() {
                    leaving.call_off();
                }
                answer
            }
            () = called_back => {
                self.held.close().await;
                leaving.end_wait().await;
                Ok(Answer::Busy)
            }
        }
    }

    async fn unlock(&self, _: &Claim, _: Sharing) -> Result<bool, Failure> {
        // The row of the table of holders counts no longer, since the word of this turn is gone.
        self.end().await
    }

    async fn ping(&self) -> Result<(), Failure> {
        self.held.ping().await
    }

    async fn cancel(&self) {
        // Later questions are not notified.
        self.called_back.notify_waiters();
    }

    async fn closed(&self) {
        self.held.closed().await;
    }

    fn is_open(&self) -> bool {
        self.held.is_open()
    }
}

enum Taking {
    Taken(Fence),
    NoRow,
}

/// A question that may wait in the server, until it is answered. Dropped before, it has the server end the
/// connection, which would otherwise continue to wait for a lock that nobody wants.
struct Leaving {
    base: Arc<Base>,
    /// The statement that ends the connection of the question, and no other.
    kill: Option<String>,
}

impl Leaving {
    fn of(session: &RowSession, ask: &Ask<'_>) -> Leaving {
        let kill = format!("KILL IS_USED_LOCK({})", utf8(&session.word));
        Leaving { base: session.base.clone(), kill: (!ask.wait.is_zero()).then_some(kill) }
    }

    fn call_off(mut self) {
        self.kill = None;
    }

    /// Has the server end it now. Where that fails, the server's own limit ends the wait.
    async fn end_wait(mut self) {
        if let Some(kill) = self.kill.take() {
            kill_by(&self.base, &kill).await;
        }
    }
}

impl Drop for Leaving {
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

/// Checks that named locks of these words belong to nobody else.
fn check_word(taken: Option<u8>) -> Result<(), Failure> {
    match taken {
        Some(1) => Ok(()),
        _ => Err(Failure::unavailable(
            "the server gave no named lock to know a session by, and did not say why",
        )),
    }
}

/// Returns a word that names one session among all, past and present.
fn draw_word() -> Result<String, Failure> {
    let drawn = getrandom::u64().map(|word| format!("leasehold-{word:016x}"));
    drawn.map_err(|error| {
        Failure::unavailable(format!("the operating system gives no random numbers: {error}"))
    })
}

/// The condition that the transaction of a row of the table of holders is still open.
const IS_ALIVE: &str = "IS_USED_LOCK(CONVERT(word USING utf8mb4)) = session";
/// Tries of one question whose row or table is not there yet.
const MAX_TRIES: u32 = 3;
/// The time by which a wait may be longer than was asked for, because the server counts whole seconds, and
/// looks once in one.
const LATE: Duration = Duration::from_secs(2);
