//! Named locks by `GET_LOCK`: all locks of a client are held by one session.
//!
//! Ground rules: the lock decides, and a row only shows its holder. A lock is not taken back when a later
//! statement fails, so that is followed by one that gives it back. A server lets one session take one lock
//! again and again, so a session asks only for what it does not have.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::session::{Answer, Capacity, LockRequest, Session, Sessions, Sharing, foreign_holder};
use leasehold_core::{
    Claim, ClaimId, ClaimInfo, Clock, Failure, Fence, Finding, Note, Profile, Resource, ResourceSummary,
    Share, WaitMode,
};

use crate::backend::session::dotnet;
use crate::backend::session::{Base, claim_info};
use crate::config::{Dialect, MySqlConfig};
use crate::error::Refusal;
use crate::net::dial::{Flavour, only, read};
use crate::net::session::SessionLink;
use crate::sql::statements::{NOW, literal, utf8};

/// The named locks of one server, and the table of their holders.
#[derive(Debug)]
pub(crate) struct GetLock {
    base: Arc<Base>,
    profile: Profile,
}

impl GetLock {
    pub(crate) async fn connect(config: MySqlConfig, clock: Arc<dyn Clock>) -> Result<GetLock, Failure> {
        let base = Base::connect(config, clock, "_held").await?;
        let profile = base.server.session_profile(&base.pool.config, WaitMode::Polls);
        Ok(GetLock { base: Arc::new(base), profile })
    }
}

#[async_trait]
impl Sessions for GetLock {
    type Session = GetLockSession;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn capacity(&self) -> Capacity {
        Capacity::Many
    }

    fn answer_limit(&self) -> Duration {
        self.base.pool.config.sql.timeout
    }

    fn key(&self, resource: &Resource) -> String {
        let name = self.base.lock_name(resource);
        match self.base.flavour {
            Flavour::MariaDb => name,
            // To MySQL small and large letters are one.
            Flavour::MySql => name.to_lowercase(),
        }
    }

    async fn open(&self) -> Result<GetLockSession, Failure> {
        Ok(GetLockSession { link: self.base.open().await?, base: self.base.clone() })
    }

    async fn holders(&self, resource: &Resource) -> Result<Vec<ClaimInfo>, Failure> {
        let lock_name = utf8(&self.base.lock_name(resource));
        let query = format!(
            "SELECT IS_USED_LOCK({lock_name}), h.session, h.claim, h.note, h.seq, h.since \
             FROM (SELECT 1 AS one) AS o LEFT JOIN {held} AS h ON h.lock_name = {lock_name}",
            held = self.base.holders_table
        );
        let rows = self.base.query(&query).await?;
        let row = only(rows)?;
        let Some(user) = read::<Option<u64>>(&row, 0)? else { return Ok(Vec::new()) };
        Ok(vec![match read::<Option<u64>>(&row, 1)? {
            Some(session) if session == user => claim_info(&row, resource, self.base.has_fences())?,
            // Another program may hold it, which has no row in our table.
            _ => foreign_claim(user),
        }])
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
        if let Some(connection) = connection_of_foreign_claim(claim.id) {
            return Err(foreign_holder(&format!("connection {connection} of the server")));
        }
        let lock_name = utf8(&self.base.lock_name(&claim.resource));
        let (held, id) = (&self.base.holders_table, claim.id.to_hex());
        let holder = format!(
            "SELECT session FROM {held} WHERE lock_name = {lock_name} AND name = {} AND claim = '{id}' AND {IS_ALIVE}",
            literal(claim.resource.as_str())
        );
        let Some(row) = self.base.query(&holder).await?.pop() else { return Ok(None) };
        let session: u64 = read(&row, 0)?;
        let others = format!(
            "SELECT name FROM {held} WHERE session = {session} AND claim <> '{id}' AND {IS_ALIVE} \
             ORDER BY name LIMIT {ALSO_RELEASED_MAX}"
        );
        let others = self.base.query(&others).await?;
        let others: Vec<String> = others.iter().map(|row| read(row, 0)).collect::<Result<_, _>>()?;
        let is_ended = self.base.evict(&lock_name, session).await?;
        Ok(is_ended.then(|| others.iter().filter_map(|name| Resource::new(name).ok()).collect()))
    }

    async fn diagnose(&self, _: Duration) -> Vec<Finding> {
        crate::backend::diagnose::of_sessions(&self.base.server, &self.base.pool).await
    }
}

impl Base {
    /// Returns the server's name for the lock. Native names are digests: servers differ in whether letters
    /// count as large or small, and how long a name may be; and this database's locks are not those of
    /// others on the server.
    fn lock_name(&self, resource: &Resource) -> String {
        self.name_in(&self.database, resource)
    }

    fn name_in(&self, database: &str, resource: &Resource) -> String {
        let name = resource.as_str();
        let fits = match self.flavour {
            Flavour::MariaDb => name.len() <= MARIADB_MAX_BYTES,
            Flavour::MySql => name.chars().count() <= MYSQL_MAX_CHARS,
        };
        match self.pool.config.dialect {
            // A name that does not fit can be no lock of `tooz`.
            Dialect::Tooz if fits => name.to_owned(),
            Dialect::DotNet => dotnet::lock_name(name),
            Dialect::Tooz | Dialect::Native | Dialect::ShedLock => {
                let digest = blake3::hash(format!("{database}\0{name}").as_bytes()).to_hex();
                format!("leasehold-{}", &digest[..DIGITS])
            }
        }
    }

    /// Returns the name that earlier versions give the lock, where it differs.
    fn former_name(&self, resource: &Resource) -> Option<String> {
        let former = self.name_in(self.written.as_ref()?, resource);
        (former != self.lock_name(resource)).then_some(former)
    }

    /// Returns the statements that try to take the lock, and leave in `@leasehold` whether it is taken. A
    /// lock with two names is taken under both or none.
    fn taking(&self, resource: &Resource) -> String {
        // Each is requested in a statement of its own, because the server does not promise how often a
        // condition is evaluated.
        let name = utf8(&self.lock_name(resource));
        let taking = format!("SET @leasehold = GET_LOCK({name}, 0); ");
        let Some(former) = self.former_name(resource) else { return taking };
        taking
            + &format!(
                "SET @former = IF(@leasehold = 1, GET_LOCK({}, 0), 1); \
                 SET @back = IF(@former = 1, 1, RELEASE_LOCK({name})); \
                 SET @leasehold = IF(@former = 1, @leasehold, @former); ",
                utf8(&former)
            )
    }

    /// Returns the statements that give the lock back, and answer 1 where it was held.
    fn giving_back(&self, resource: &Resource) -> String {
        let name = utf8(&self.lock_name(resource));
        let former = self.former_name(resource).map(|former| format!("DO RELEASE_LOCK({}); ", utf8(&former)));
        format!("{}SELECT RELEASE_LOCK({name})", former.unwrap_or_default())
    }
}

/// One session with its locks.
#[derive(Debug)]
pub(crate) struct GetLockSession {
    link: SessionLink,
    base: Arc<Base>,
}

impl GetLockSession {
    /// Takes the lock and enters the holder, in one round trip. The fence is drawn after the lock is given.
    async fn take(&self, claim: &Claim) -> Result<Answer, Refusal> {
        let lock_name = utf8(&self.base.lock_name(&claim.resource));
        let entry = format!(
            "{}, '{}', {}, CONNECTION_ID()",
            literal(claim.resource.as_str()),
            claim.id.to_hex(),
            literal(claim.note.as_str())
        );
        let statements = format!(
            "{taking}\
             INSERT INTO {held} (lock_name, name, claim, note, session, seq, since) \
             SELECT {lock_name}, {entry}, LAST_INSERT_ID({NOW}), {NOW} FROM DUAL WHERE @leasehold = 1 \
             ON DUPLICATE KEY UPDATE name = {name}, claim = '{claim}', note = {note}, session = CONNECTION_ID(), \
             seq = LAST_INSERT_ID(GREATEST(seq + 1, {NOW})), since = {NOW}; \
             SELECT @leasehold, LAST_INSERT_ID()",
            taking = self.base.taking(&claim.resource),
            held = self.base.holders_table,
            name = literal(claim.resource.as_str()),
            claim = claim.id.to_hex(),
            note = literal(claim.note.as_str()),
        );
        let row = only(self.link.run(&statements).await?).map_err(Refusal::Failed)?;
        let answer = || match read::<Option<u8>>(&row, 0)? {
            Some(1) if self.base.has_fences() => Ok(Answer::Taken(Some(Fence::new(0, read(&row, 1)?, 0)))),
            Some(1) => Ok(Answer::Taken(None)),
            Some(_) => Ok(Answer::Busy),
            None => Err(Failure::unavailable("the server could not take the lock, and did not say why")),
        };
        answer().map_err(Refusal::Failed)
    }

    /// Releases the lock; `false` where the server says that this session did not have it.
    async fn give_back(&self, claim: &Claim) -> Result<bool, Refusal> {
        let rows = self.link.run(&self.base.giving_back(&claim.resource)).await?;
        let given: Option<u8> = only(rows).and_then(|row| read(&row, 0)).map_err(Refusal::Failed)?;
        Ok(given == Some(1))
    }

    /// Releases a lock whose statements failed, in case it was taken.
    async fn put_back(&self, claim: &Claim) -> Result<(), Failure> {
        let given = self.give_back(claim).await;
        given.map(drop).map_err(|refusal| Failure::unanswered(refusal.into_failure().to_string()))
    }
}

#[async_trait]
impl Session for GetLockSession {
    async fn lock(&self, request: &LockRequest<'_>) -> Result<Answer, Failure> {
        let claim = request.claim;
        for is_last in [false, true] {
            let refusal = match self.take(claim).await {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            match refusal {
                // The session is closed, and has nothing any more.
                Refusal::Failed(failure) if !self.link.is_open() => return Err(failure),
                Refusal::LostRace => {
                    self.put_back(claim).await?;
                    return Ok(Answer::Busy);
                }
                Refusal::NoTable(failure) if !is_last => {
                    self.put_back(claim).await?;
                    self.base.recreate_tables(failure).await?;
                }
                Refusal::NoTable(failure) | Refusal::RowLocked(failure) | Refusal::Failed(failure) => {
                    self.put_back(claim).await?;
                    return Err(failure);
                }
            }
        }
        Ok(Answer::Busy)
    }

    async fn unlock(&self, claim: &Claim, _: Sharing) -> Result<bool, Failure> {
        self.give_back(claim).await.map_err(Refusal::into_failure)
    }

    async fn ping(&self) -> Result<(), Failure> {
        self.link.ping().await
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

/// Returns the connection of a claim that [`foreign_claim`] made.
fn connection_of_foreign_claim(id: ClaimId) -> Option<u64> {
    let (connection, rest) = id.as_bytes().split_first_chunk()?;
    rest.iter().all(|byte| *byte == 0).then(|| u64::from_be_bytes(*connection))
}

/// Returns a claim for a holder that is another program.
fn foreign_claim(connection: u64) -> ClaimInfo {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&connection.to_be_bytes());
    ClaimInfo::new(ClaimId::from_bytes(id), Share::MUTEX)
        .note(Note::clipped(&format!("not by leasehold: connection {connection} of the server")))
}

/// The condition that the lock of a row of the table of holders is still its session's.
const IS_ALIVE: &str = "IS_USED_LOCK(CONVERT(lock_name USING utf8mb4)) = session";
/// The most names of locks that are reported to have ended with another.
const ALSO_RELEASED_MAX: u32 = 1_000;
/// The longest names of locks that each server takes.
const MARIADB_MAX_BYTES: usize = 192;
const MYSQL_MAX_CHARS: usize = 64;
/// Hexadecimal digits of a digest: as many as fit on both.
const DIGITS: usize = MYSQL_MAX_CHARS - "leasehold-".len();
