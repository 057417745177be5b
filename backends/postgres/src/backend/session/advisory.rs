//! Advisory locks: all locks of a client are held by one session.
//!
//! Ground rules: such a lock is not taken back when its statement fails, so a statement that failed is
//! followed by one that gives the lock back, and a session of which that is not known is closed. A session
//! has one user: it is marked with a name when it is opened, is not opened where it has a mark, and each
//! statement changes nothing in a session of another mark. A pooler that shares sessions against what was
//! found out can therefore not make two holders of one lock.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::session::{
    Answer, Capacity, LockRequest, Session, Sessions, Sharing, collision, foreign_holder,
};
use leasehold_core::{
    Claim, ClaimId, ClaimInfo, Effect, Failure, FailureKind, Finding, Note, Profile, Resource,
    ResourceSummary, Share, WaitMode,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::holders::{AGAIN, ALIVE, CLAIM, Entry, drawn, evict, evicted, insert};
use super::key::Key;
use super::{Base, draw_session_name};
use crate::config::{Create, Names, PostgresConfig};
use crate::error::Refusal;
use crate::net::dial::{Link, Sql, only, read};
use crate::net::server::Sessions as Shared;
use crate::sql::rows::fence;

/// Advisory locks of one database.
#[derive(Debug)]
pub(crate) struct Advisory {
    base: Arc<Base>,
    statements: Arc<Statements>,
    profile: Profile,
}

impl Advisory {
    pub(crate) async fn connect(config: PostgresConfig) -> Result<Advisory, Failure> {
        let base = Base::connect(config).await?;
        if base.server.sessions == Shared::Shared {
            return Err(shared());
        }
        let statements = Arc::new(Statements::of(&base.config.names));
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
        if self.base.server.sessions == Shared::Direct && !link.is_direct {
            return Err(Failure::unavailable(
                "something is between this client and the server, and nothing was when it connected: connect anew",
            ));
        }
        let session_name = draw_session_name()?;
        let marked =
            link.query(&self.statements.mark, &[&session_name]).await.map_err(Refusal::into_failure)?;
        if marked.is_empty() {
            return Err(shared());
        }
        let settings = format!(
            "SET application_name = '{session_name}'; SET idle_session_timeout = {patience}; SET statement_timeout = {limit}; \
             SET default_transaction_isolation = 'read committed'; {connection}",
            patience = self.base.config.sql.server_timeout().as_millis(),
            limit = self.base.limit().as_millis(),
            connection = self.base.patience("SESSION"),
        );
        link.run(&settings).await.map_err(Refusal::into_failure)?;
        self.base.tidy(&link).await?;
        Ok(AdvisorySession {
            link,
            session_name,
            base: self.base.clone(),
            statements: self.statements.clone(),
        })
    }

    async fn holders(&self, resource: &Resource) -> Result<Vec<ClaimInfo>, Failure> {
        let holders = self.base.holders_table.holders(&self.base.pool, resource).await?;
        if !holders.is_empty() {
            return Ok(holders);
        }
        // Another program may hold it, which has no row in our table.
        let (wide, one, high, low) = Key::of(resource.as_str()).numbers();
        let rows = self
            .base
            .pool
            .query_retrying(&self.statements.foreign_holders, &[&wide, &one, &high, &low])
            .await;
        let rows = rows.map_err(Refusal::into_failure)?;
        rows.iter().map(|row| foreign_claim(read(row, 0)?, read(row, 1)?, read(row, 2)?)).collect()
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
        evicted(self.base.pool.query(&self.statements.evict, &[&id, &name, &wide, &one, &high, &low]).await)
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
    base: Arc<Base>,
    statements: Arc<Statements>,
}

impl AdvisorySession {
    async fn take(&self, request: &LockRequest<'_>) -> Result<Answer, Refusal> {
        let LockRequest { claim, sharing, .. } = request;
        let key = Key::of(claim.resource.as_str());
        let sql = match (sharing, claim.share.is_exclusive()) {
            (Sharing::Readers, _) => &self.statements.join,
            (Sharing::None, true) => &self.statements.take_alone,
            (Sharing::None, false) => &self.statements.take_shared,
        };
        let (entry, (wide, one, high, low)) = (Entry::of(claim, key.text()), key.numbers());
        let Entry { id, name, key, weight, capacity, note } = &entry;
        let answer = self
            .link
            .query(
                sql,
                &[id, name, key, weight, capacity, note, &wide, &one, &high, &low, &self.session_name],
            )
            .await?;
        let row = only(answer).map_err(Refusal::Failed)?;
        let taken = || -> Result<Answer, Failure> {
            if in_ours(&row)? {
                return Ok(Answer::Taken(Some(fence(&row, 1)?)));
            }
            match read::<Option<String>>(&row, 3)? {
                Some(other) => Err(collision(&claim.resource, &other)),
                None => Ok(Answer::Busy),
            }
        };
        taken().map_err(Refusal::Failed)
    }

    /// Releases a lock whose statement failed, in case it was taken.
    async fn put_back(&self, request: &LockRequest<'_>) -> Result<(), Failure> {
        if request.sharing == Sharing::Readers {
            return Ok(());
        }
        let (wide, one, high, low) = Key::of(request.claim.resource.as_str()).numbers();
        let sql = self.statements.free(request.claim.share.is_exclusive(), false);
        let answer = self.link.query(sql, &[&wide, &one, &high, &low, &self.session_name]).await;
        let answer =
            answer.and_then(|rows| only(rows).and_then(|row| in_ours(&row)).map_err(Refusal::Failed));
        answer.map(drop).map_err(|refusal| Failure::unanswered(refusal.into_failure().to_string()))
    }
}

#[async_trait]
impl Session for AdvisorySession {
    async fn lock(&self, request: &LockRequest<'_>) -> Result<Answer, Failure> {
        for is_last in [false, true] {
            let refusal = match self.take(request).await {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            match refusal {
                // The server gave nothing, and said why.
                Refusal::Failed(failure) if failure.kind == FailureKind::Foreign => return Err(failure),
                Refusal::Failed(failure) if failure.effect == Effect::Unknown => return Err(failure),
                Refusal::LostRace => {
                    self.put_back(request).await?;
                    return Ok(Answer::Busy);
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

    async fn unlock(&self, claim: &Claim, sharing: Sharing) -> Result<bool, Failure> {
        let (id, key) = (claim.id.to_hex(), Key::of(claim.resource.as_str()));
        let (wide, one, high, low) = key.numbers();
        let answer = match sharing {
            Sharing::Readers => self.link.query(&self.base.holders_table.delete, &[&id]).await.map(|_| true),
            Sharing::None => {
                let sql = self.statements.free(claim.share.is_exclusive(), true);
                let answer = self.link.query(sql, &[&wide, &one, &high, &low, &self.session_name, &id]).await;
                answer.and_then(|rows| only(rows).and_then(|row| in_ours(&row)).map_err(Refusal::Failed))
            }
        };
        answer.map_err(Refusal::into_failure)
    }

    async fn ping(&self) -> Result<(), Failure> {
        let answer = self.link.query(&self.statements.is_ours, &[&self.session_name]).await;
        only(answer.map_err(Refusal::into_failure)?).and_then(|row| in_ours(&row)).map(drop)
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

/// The statements for advisory locks, and for the table that shows their holders.
#[derive(Debug)]
struct Statements {
    /// Takes the lock for a mutex, a writer or all permits: `lock` of a session.
    take_alone: Sql,
    /// Takes the lock for a first reader: `lock` of a session.
    take_shared: Sql,
    /// Adds a reader to those of the same session, which has the lock: `lock` of a session.
    join: Sql,
    /// Ends what `take_alone` took: `unlock` of a session.
    free_alone: Sql,
    /// Ends what `take_shared` took: `unlock` of a session.
    free_shared: Sql,
    /// Ends what a `take_alone` that failed may have taken.
    put_back_alone: Sql,
    /// Ends what a `take_shared` that failed may have taken.
    put_back_shared: Sql,
    /// Reads the holders that did not take the lock by leasehold: `holders`, for inspections.
    foreign_holders: Sql,
    /// Ends the connection that holds a claim: `evict`, for `leasehold break`.
    evict: Sql,
    /// Marks the server's session as ours, when a connection is opened.
    mark: Sql,
    /// Checks the mark of the server's session: `ping`, by which locks are renewed.
    is_ours: Sql,
}

impl Statements {
    fn of(names: &Names) -> Statements {
        let take = |name, lock: &str, clear: &str| Sql { name, text: take(names, lock, clear), types: TAKE };
        let key = |function: &str| {
            let free =
                format!("CASE WHEN $1 THEN pg_catalog.{function}($2) ELSE pg_catalog.{function}($3, $4) END");
            format!("CASE WHEN {} THEN {free} END", is_ours(5))
        };
        let held = names.table("_held");
        let free = |name, function: &str| Sql {
            name,
            text: format!("WITH gone AS (DELETE FROM {held} WHERE claim = $6) SELECT {}", key(function)),
            types: FREE,
        };
        let put_back =
            |name, function: &str| Sql { name, text: format!("SELECT {}", key(function)), types: &FREE[..5] };
        // A session that has it alone knows that all other rows of the name were left by sessions that have
        // ended.
        let clear =
            format!("old AS (DELETE FROM {held} h USING l WHERE l.got AND h.name = $2 AND h.claim <> $1), ");
        let try_lock = |function: &str| {
            format!("CASE WHEN $7 THEN pg_catalog.{function}($8) ELSE pg_catalog.{function}($9, $10) END")
        };
        Statements {
            take_alone: take("take_alone", &try_lock("pg_try_advisory_lock"), &clear),
            take_shared: take("take_shared", &try_lock("pg_try_advisory_lock_shared"), ""),
            // The parameters are named so that the statement has as many as the others.
            join: take("join", "$7 OR $8 = 0 OR $9 = 0 OR $10 = 0 OR true", ""),
            free_alone: free("free_alone", "pg_advisory_unlock"),
            free_shared: free("free_shared", "pg_advisory_unlock_shared"),
            put_back_alone: put_back("put_back_alone", "pg_advisory_unlock"),
            put_back_shared: put_back("put_back_shared", "pg_advisory_unlock_shared"),
            foreign_holders: Sql {
                name: "foreign_holders",
                text: format!("{FOREIGN_HOLDERS} AND {} ORDER BY k.pid LIMIT 100", is_of_key(1)),
                types: KEY,
            },
            evict: Sql {
                name: "evict",
                text: evict(
                    names,
                    &format!(
                        "EXISTS (SELECT FROM pg_catalog.pg_locks k WHERE k.pid = h.pid AND {})",
                        is_of_key(3)
                    ),
                ),
                types: &[Type::TEXT, Type::TEXT, Type::BOOL, Type::INT8, Type::INT4, Type::INT4],
            },
            mark: Sql {
                name: "mark_session",
                text: format!("SELECT set_config({MARK}, $1, false) WHERE {CURRENT_MARK} = ''::text"),
                types: &[Type::TEXT],
            },
            is_ours: Sql {
                name: "is_ours",
                text: format!("SELECT CASE WHEN {} THEN true END", is_ours(1)),
                types: &[Type::TEXT],
            },
        }
    }

    /// Returns the statement that gives a lock back, with its row or alone.
    fn free(&self, exclusive: bool, with_row: bool) -> &Sql {
        match (exclusive, with_row) {
            (true, true) => &self.free_alone,
            (false, true) => &self.free_shared,
            (true, false) => &self.put_back_alone,
            (false, false) => &self.put_back_shared,
        }
    }
}

/// Takes the lock and enters the holder, in one round trip. The fence is drawn for a row that exists only
/// after the lock is given.
fn take(names: &Names, lock: &str, clear: &str) -> String {
    let held = names.table("_held");
    format!(
        "WITH l AS MATERIALIZED (SELECT CASE WHEN {is_ours} THEN {lock} END AS got), {clear}\
         put AS ({insert} SELECT {CLAIM}, current_setting('application_name'), pg_backend_pid(), {drawn} \
         FROM l WHERE l.got {AGAIN} RETURNING epoch, seq) \
         SELECT true, epoch, seq, NULL::text FROM put \
         UNION ALL SELECT l.got, NULL, NULL, (SELECT h.name FROM {held} h \
         WHERE h.lock_key = $3 AND h.name <> $2 AND {ALIVE} LIMIT 1) FROM l WHERE l.got IS NOT TRUE",
        is_ours = is_ours(11),
        insert = insert(&held),
        drawn = drawn(names),
    )
}

/// Returns the condition that the session has the mark of this parameter.
fn is_ours(parameter: usize) -> String {
    format!("{CURRENT_MARK} = ${parameter}")
}

/// Reads the first column of a statement that answers nothing in a session of another mark.
fn in_ours(row: &Row) -> Result<bool, Failure> {
    read::<Option<bool>>(row, 0)?
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

/// Returns the process of a claim that [`foreign_claim`] made.
fn process_of_foreign_claim(id: ClaimId) -> Option<i32> {
    let (pid, rest) = id.as_bytes().split_first_chunk()?;
    rest.iter().all(|byte| *byte == 0).then(|| i32::from_be_bytes(*pid))
}

/// Returns a claim for a holder that is another program.
fn foreign_claim(pid: i32, mode: &str, application: &str) -> Result<ClaimInfo, Failure> {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&pid.to_be_bytes());
    Ok(ClaimInfo::new(
        ClaimId::from_bytes(id),
        if mode == "ShareLock" { Share::READER } else { Share::WRITER },
    )
    .note(Note::clipped(&format!("not by leasehold: process {pid} of the server, {application:?}"))))
}

const TAKE: &[Type] = &[
    Type::TEXT,
    Type::TEXT,
    Type::TEXT,
    Type::INT8,
    Type::INT8,
    Type::TEXT,
    Type::BOOL,
    Type::INT8,
    Type::INT4,
    Type::INT4,
    Type::TEXT,
];

/// The parameters of a statement that releases a lock: the key, the mark of the session and, where it has a
/// row, the claim.
const FREE: &[Type] = &[Type::BOOL, Type::INT8, Type::INT4, Type::INT4, Type::TEXT, Type::TEXT];

/// The setting that marks a session. No server reports its changes, so no pooler carries it from one
/// session to another.
const MARK: &str = "'leasehold.session'::text";
const CURRENT_MARK: &str = "coalesce(current_setting('leasehold.session'::text, true), ''::text)";

const KEY: &[Type] = &[Type::BOOL, Type::INT8, Type::INT4, Type::INT4];

/// The processes that hold a key and are not leasehold's.
const FOREIGN_HOLDERS: &str = "SELECT k.pid, k.mode, a.application_name FROM pg_catalog.pg_locks k \
    JOIN pg_catalog.pg_stat_activity a USING (pid) WHERE a.application_name NOT LIKE 'leasehold %'";

/// Returns the condition that a lock `k` of the server is held, and is of the key whose four parameters
/// begin with this one. PostgreSQL shows a key of one number as two halves.
fn is_of_key(first: usize) -> String {
    let [wide, one, high, low] = [first, first + 1, first + 2, first + 3];
    format!(
        "k.locktype = 'advisory' AND k.granted \
         AND k.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) AND CASE WHEN ${wide} \
         THEN k.objsubid = 1 AND (k.classid::int8 << 32 | k.objid::int8) = ${one} \
         ELSE k.objsubid = 2 AND k.classid::int8 = (${high}::int8 & 4294967295) \
         AND k.objid::int8 = (${low}::int8 & 4294967295) END"
    )
}
