//! Named locks by `GET_LOCK`: all locks of a client are held by one session.
//!
//! A lock costs the server an expression that writes nothing, and the expressions of several tasks go
//! together. The row that shows its holder follows by another connection, if it is held for longer than a
//! moment.
//!
//! Ground rules: the lock decides, and a row only shows its holder. It counts while its session has two named
//! locks: that of the resource, and one named after the claim, which is taken when the row is there. A lock
//! is not taken back when a later statement fails, so that is followed by one that gives it back. A server
//! lets one session take one lock again and again, so a session asks only for what it does not have.

mod requests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::session::{
    Answer, Capacity, Holder, Session, SessionRequest, Sessions, Sharing, foreign_holder,
};
use leasehold_core::{
    Claim, ClaimId, ClaimInfo, Clock, Failure, Finding, Note, Profile, Resource, ResourceSummary, Share,
    WaitMode,
};

use crate::backend::session::dotnet;
use crate::backend::session::fences::Fences;
use crate::backend::session::{Base, claim_info};
use crate::config::{Dialect, MySqlConfig};
use crate::error::Refusal;
use crate::net::dial::{Flavour, only, read};
use crate::net::session::SessionLink;
use crate::sql::statements::{NOW, literal, utf8};
use requests::{Request, Requests};

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

/// The holder of a lock, as one statement sees it.
enum Seen {
    Free,
    Shown(ClaimInfo),
    /// A connection of this library that is about to show its locks.
    Unshown(u64),
    /// A connection that does not say so.
    Other(u64),
}

impl GetLock {
    /// Reads who holds the lock.
    async fn look(&self, resource: &Resource) -> Result<Seen, Failure> {
        let lock_name = utf8(&self.base.lock_name(resource));
        let query = format!(
            "SELECT o.user, h.session, h.claim, h.note, h.seq, h.since, {is_alive}, \
             IS_USED_LOCK(IFNULL(CONCAT('{UNSHOWN}', o.user), '{NO_LOCK}')) = o.user \
             FROM (SELECT IS_USED_LOCK({lock_name}) AS user) AS o LEFT JOIN {held} AS h ON h.lock_name = {lock_name}",
            is_alive = is_alive("h"),
            held = self.base.holders_table
        );
        let row = only(self.base.query(&query).await?)?;
        let Some(user) = read::<Option<u64>>(&row, 0)? else { return Ok(Seen::Free) };
        let is_true = |at| read::<Option<u8>>(&row, at).map(|value| value == Some(1));
        Ok(match (is_true(6)?, is_true(7)?) {
            (true, _) => Seen::Shown(claim_info(&row, resource, self.base.has_fences())?),
            (false, true) => Seen::Unshown(user),
            (false, false) => Seen::Other(user),
        })
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
        let (base, link) = (self.base.clone(), self.base.open().await?);
        let fences = match base.has_fences() {
            true => Some(base.open_fences(&link).await?),
            false => None,
        };
        let requests = Requests::new(link.number, fences.is_some());
        Ok(GetLockSession { link, requests, fences, base })
    }

    async fn holders(&self, resource: &Resource, is_last: bool) -> Result<Option<Vec<ClaimInfo>>, Failure> {
        let mut seen = self.look(resource).await?;
        // A statement reads the lock, the row and the marker one after another, and a holder may show itself or release
        // the lock meanwhile. One that is seen so again and again does neither.
        for _ in 1..LOOKS_AT_OTHERS {
            let Seen::Other(user) = seen else { break };
            seen = match self.look(resource).await? {
                Seen::Other(again) if again != user => Seen::Unshown(again),
                again => again,
            };
        }
        Ok(match seen {
            Seen::Free => Some(Vec::new()),
            Seen::Shown(holder) => Some(vec![holder]),
            Seen::Unshown(_) if !is_last => None,
            // Another program may hold it, or a client that could not write its row.
            Seen::Unshown(user) | Seen::Other(user) => Some(vec![foreign_claim(user)]),
        })
    }

    async fn unshown(&self) -> Result<HashSet<String>, Failure> {
        // The server does not let this user see the connections of others, without a right that locks do not
        // need. Connections that come later are not waited for.
        let query = format!(
            "SELECT p.id FROM information_schema.processlist AS p WHERE IS_USED_LOCK(CONCAT('{UNSHOWN}', p.id)) = p.id"
        );
        let rows = self.base.query(&query).await?;
        rows.iter().map(|row| read::<u64>(row, 0).map(|id| id.to_string())).collect()
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.base.list(&is_alive("h"), prefix, after, limit).await
    }

    async fn evict(&self, claim: &Claim) -> Result<Option<Vec<Resource>>, Failure> {
        if let Some(connection) = connection_of_foreign_claim(claim.id) {
            return Err(foreign_holder(&format!("connection {connection} of the server")));
        }
        let lock_name = utf8(&self.base.lock_name(&claim.resource));
        let (held, id) = (&self.base.holders_table, claim.id.to_hex());
        let holder = format!(
            "SELECT session FROM {held} AS h WHERE lock_name = {lock_name} AND name = {} AND claim = '{id}' AND {is_alive}",
            literal(claim.resource.as_str()),
            is_alive = is_alive("h")
        );
        let Some(row) = self.base.query(&holder).await?.pop() else { return Ok(None) };
        let session: u64 = read(&row, 0)?;
        let others = format!(
            "SELECT name FROM {held} AS h WHERE session = {session} AND claim <> '{id}' AND {is_alive} \
             ORDER BY name LIMIT {ALSO_RELEASED_MAX}",
            is_alive = is_alive("h")
        );
        let others = self.base.query(&others).await?;
        let others: Vec<String> = others.iter().map(|row| read(row, 0)).collect::<Result<_, _>>()?;
        // With that of the claim, so that it is not another one of this session that has the resource now.
        let of_claim = format!("'{}'", lock_of_claim(claim.id));
        let is_ended = self.base.evict(&[&lock_name, &of_claim], session).await?;
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

    /// Begins the fences of a session, and creates the table again if it was lost with the server's data.
    async fn open_fences(&self, link: &SessionLink) -> Result<Fences, Failure> {
        let names = &self.pool.config.names;
        let fences = match Fences::open(link, names).await {
            Err(Refusal::NoTable(failure)) => {
                self.recreate_tables(failure).await?;
                Fences::open(link, names).await
            }
            fences => fences,
        };
        fences.map_err(Refusal::into_failure)
    }
}

/// One session with its locks.
#[derive(Debug)]
pub(crate) struct GetLockSession {
    link: SessionLink,
    requests: Requests,
    /// None for clients that share their locks with others without fences.
    fences: Option<Fences>,
    base: Arc<Base>,
}

impl GetLockSession {
    /// Takes the lock, in one round trip. The number of the fence is drawn when the lock has been given.
    async fn take(&self, claim: &Claim) -> Result<Answer, Refusal> {
        let (name, former) = (self.base.lock_name(&claim.resource), self.base.former_name(&claim.resource));
        let known = self.fences.as_ref().map(|fences| (fences, fences.known()));
        let request = Request::Lock { name, former, claim: claim.id };
        let answer = self.requests.ask(&self.link, request).await.map_err(Refusal::Failed)?;
        let fence = match (answer, known) {
            (None, _) => {
                let text = "the server could not take the lock, and did not say why";
                return Err(Refusal::Failed(Failure::unavailable(text)));
            }
            (Some(0), _) => return Ok(Answer::Busy),
            (Some(_), None) => None,
            (Some(counter), Some((fences, known))) => match known.fence(counter) {
                Some(fence) => Some(fence),
                None => Some(fences.draw(&self.link, &self.base.pool, known).await?),
            },
        };
        Ok(Answer::Taken { fence, is_shown: false })
    }

    /// Releases the lock; `false` where the server says that this session did not have it.
    async fn give_back(&self, claim: &Claim, is_shown: bool) -> Result<bool, Failure> {
        let (name, former) = (self.base.lock_name(&claim.resource), self.base.former_name(&claim.resource));
        let request = Request::Unlock { name, former, claim: claim.id, is_shown };
        Ok(self.requests.ask(&self.link, request).await? == Some(1))
    }

    /// Releases a lock whose statements failed, in case it was taken.
    async fn put_back(&self, claim: &Claim) -> Result<(), Failure> {
        let given = self.give_back(claim, false).await;
        given.map(drop).map_err(Failure::into_unanswered)
    }

    /// Writes rows of these holders, of those that still have their locks.
    async fn write_rows(&self, holders: &[Holder]) -> Result<(), Failure> {
        let rows = holders.iter().map(|Holder { claim, fence, held_for }| {
            format!(
                "SELECT {lock_name} AS lock_name, {name} AS name, '{id}' AS claim, {note} AS note, {session} AS session, \
                 {seq} AS seq, {NOW} - {age} AS since",
                lock_name = utf8(&self.base.lock_name(&claim.resource)),
                name = literal(claim.resource.as_str()),
                id = claim.id.to_hex(),
                note = literal(claim.note.as_str()),
                session = self.link.number,
                seq = fence.unwrap_or_default().seq,
                age = held_for.as_micros(),
            )
        });
        let rows: Vec<String> = rows.collect();
        let columns = ["name", "claim", "note", "session", "seq", "since"];
        let columns: Vec<String> = columns.iter().map(|name| format!("{name} = VALUES({name})")).collect();
        let insert = format!(
            "INSERT INTO {held} (lock_name, name, claim, note, session, seq, since) \
             SELECT * FROM ({rows}) AS n WHERE IS_USED_LOCK(n.lock_name) = n.session \
             ON DUPLICATE KEY UPDATE {columns}",
            held = self.base.holders_table,
            rows = rows.join(" UNION ALL "),
            columns = columns.join(", "),
        );
        self.base.query(&insert).await.map(drop)
    }
}

#[async_trait]
impl Session for GetLockSession {
    async fn lock(&self, request: &SessionRequest<'_>) -> Result<Answer, Failure> {
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

    async fn show(&self, holders: &[Holder]) -> Result<(), Failure> {
        self.write_rows(holders).await?;
        let claims = holders.iter().map(|holder| holder.claim.id).collect();
        match self.requests.ask(&self.link, Request::Show { claims }).await? {
            Some(1) => Ok(()),
            _ => Err(Failure::unavailable("the server did not take the locks by which their rows count")),
        }
    }

    async fn unlock(&self, claim: &Claim, _: Sharing, is_shown: bool) -> Result<bool, Failure> {
        self.give_back(claim, is_shown).await
    }

    async fn ping(&self) -> Result<(), Failure> {
        self.requests.rest(&self.link).await?;
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

/// Returns a name of a lock as an expression; shortly, where nothing in it can end it.
fn quoted(name: &str) -> String {
    if is_plain(name) { format!("'{name}'") } else { utf8(name) }
}

/// Returns `true` if a name has the same bytes in every character set, and nothing that ends a text.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Returns the name of the lock that a session has as long as the row of this claim counts.
fn lock_of_claim(id: ClaimId) -> String {
    format!("{OF_CLAIM}{}", id.to_hex())
}

/// The name of a lock that nobody takes, where there is no name: MySQL refuses to look for a lock without one, which
/// MariaDB answers with nothing.
const NO_LOCK: &str = "-";

/// Returns the condition that a row of the table of holders counts.
fn is_alive(row: &str) -> String {
    format!(
        "(IS_USED_LOCK(IFNULL(CONVERT({row}.lock_name USING utf8mb4), '{NO_LOCK}')) = {row}.session \
         AND IS_USED_LOCK(IFNULL(CONVERT(CONCAT('{OF_CLAIM}', {row}.claim) USING utf8mb4), '{NO_LOCK}')) = \
         {row}.session)"
    )
}

/// Beginnings of the names of locks that are no user's: of claims whose rows count, and of connections that
/// hold locks whose rows are still to be written.
const OF_CLAIM: &str = "leasehold-claim-";
const UNSHOWN: &str = "leasehold-unshown-";
/// Looks that must show a connection of another program. A client that locks in a loop looks like one in a few of a
/// hundred.
const LOOKS_AT_OTHERS: u32 = 4;
/// The most names of locks that are reported to have ended with another.
const ALSO_RELEASED_MAX: u32 = 1_000;
/// The longest names of locks that each server takes.
const MARIADB_MAX_BYTES: usize = 192;
const MYSQL_MAX_CHARS: usize = 64;
/// Hexadecimal digits of a digest: as many as fit on both.
const DIGITS: usize = MYSQL_MAX_CHARS - "leasehold-".len();
