//! The table of holders: a row for each lock, for inspection.
//!
//! Ground rules: the lock decides, and a row only informs. A row counts while the session lives whose name it
//! has; rows that outlived their session are removed by the next client.

use std::time::Duration;

use leasehold_backend::sql::{micros, signed};
use leasehold_core::{
    Claim, ClaimId, ClaimInfo, Effect, Failure, FailureKind, Fence, Note, Resource, ResourceSummary, Share,
};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::config::Names;
use crate::error::Refusal;
use crate::net::dial::{Link, Sql, read};
use crate::net::pool::Pool;
use crate::sql::rows::{end_of, fence};
use crate::sql::schema::CREATING;
use crate::sql::statements::{NOW, epoch};

/// The statements about the table of holders.
#[derive(Debug)]
pub(crate) struct HoldersTable {
    /// Enters a claim of another session, and draws its fence; no row if the transaction of that session has ended.
    pub(crate) enter: Sql,
    pub(crate) delete: Sql,
    pub(crate) delete_many: Sql,
    holders: Sql,
    /// Enters claims of another session with the fences that they have, or has them again.
    show: Sql,
    list: Sql,
    clear: Sql,
    mark: Sql,
    raise: String,
}

impl HoldersTable {
    pub(crate) fn of(names: &Names) -> HoldersTable {
        let (held, fence, fence_text) = (names.table("_held"), names.table("_fence"), names.text("_fence"));
        let sql = |name, text: String, types| Sql { name, text, types };
        HoldersTable {
            // One after the other, so that none takes back what another has raised.
            raise: format!(
                "SELECT pg_advisory_xact_lock({CREATING}), pg_advisory_xact_lock({RAISING}); \
                 SELECT setval({fence_text}::regclass, {NOW}) FROM {fence} WHERE last_value < {NOW}"
            ),
            enter: sql(
                "enter",
                // What this lock excludes is held no more, though the server may not have ended its session yet.
                // Without the transaction that has the lock, the lock may be another client's by now. The server
                // clears the number of a transaction that ends before it frees the locks.
                format!(
                    "WITH it AS MATERIALIZED (SELECT FROM pg_catalog.pg_stat_activity a WHERE a.pid = $8 \
                     AND a.application_name = $7 AND a.backend_xid IS NOT NULL), \
                     gone AS (DELETE FROM {held} h WHERE name = $2 AND session <> $7 \
                     AND (weight = capacity OR $4 = $5) AND EXISTS (SELECT FROM it)) \
                     {} SELECT {CLAIM}, $7, $8, {} WHERE EXISTS (SELECT FROM it) {AGAIN} RETURNING epoch, seq",
                    insert(&held),
                    drawn(names, "true")
                ),
                &[
                    Type::TEXT,
                    Type::TEXT,
                    Type::TEXT,
                    Type::INT8,
                    Type::INT8,
                    Type::TEXT,
                    Type::TEXT,
                    Type::INT4,
                ],
            ),
            delete: sql("delete_holder", format!("DELETE FROM {held} WHERE claim = $1"), &[Type::TEXT]),
            delete_many: sql(
                "delete_holders",
                format!("DELETE FROM {held} WHERE claim = ANY($1)"),
                &[Type::TEXT_ARRAY],
            ),
            holders: sql(
                "holders",
                format!(
                    "SELECT claim, weight, capacity, note, epoch, seq, (extract(epoch FROM since)::float8 * 1000::float8)::int8, \
                     pid FROM {held} h WHERE name = $1 AND {ALIVE} ORDER BY epoch, seq"
                ),
                &[Type::TEXT],
            ),
            show: show(&held),
            list: sql(
                "list_held",
                format!(
                    "SELECT name, count(*) FROM {held} h WHERE name >= $1 AND name > $2 AND name < $3 AND {ALIVE} \
                     GROUP BY name ORDER BY name LIMIT $4"
                ),
                &[Type::TEXT, Type::TEXT, Type::TEXT, Type::INT8],
            ),
            clear: sql(
                "clear",
                format!(
                    "DELETE FROM {held} h WHERE claim = ANY (ARRAY(SELECT claim FROM {held} h \
                     WHERE claim <> '' AND NOT {ALIVE} LIMIT {CLEARED_MAX})) AND NOT {ALIVE}"
                ),
                &[],
            ),
            mark: sql(
                "mark",
                format!(
                    "INSERT INTO {held} AS h (claim, name, lock_key, weight, capacity, note, session, pid, epoch, seq) \
                     SELECT '', '', '', 0, 0, '', '', 0, {}, 0 ON CONFLICT (claim) DO UPDATE SET epoch = excluded.epoch \
                     WHERE h.epoch < excluded.epoch",
                    epoch(names)
                ),
                &[],
            ),
        }
    }

    /// Tidies up when a session has been opened: rows whose sessions have ended are cleared away, and the
    /// highest epoch is noted, above which a restore in another cluster continues. The counter of fences is
    /// raised to the clock, which it falls behind where an older copy of it was put back.
    pub(crate) async fn tidy(&self, link: &Link) -> Result<(), Refusal> {
        link.query(&self.mark, &[]).await?;
        match link.run(&self.raise).await {
            Err(Refusal::Failed(failure)) if failure.kind == FailureKind::Denied => {
                tracing::warn!(%failure, "the counter of fences is not raised to the clock");
            }
            answer => answer?,
        }
        self.clear(link).await
    }

    /// Clears away rows whose sessions have ended.
    pub(crate) async fn clear(&self, link: &Link) -> Result<(), Refusal> {
        match link.query(&self.clear, &[]).await {
            // Another client removes rows just now.
            Err(Refusal::LostRace) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Reads the holders with their processes of the server, in the order of grants.
    pub(crate) async fn holders(
        &self,
        pool: &Pool,
        resource: &Resource,
    ) -> Result<Vec<(i32, ClaimInfo)>, Failure> {
        let name = resource.as_str();
        let rows = pool.query_retrying(&self.holders, &[&name]).await.map_err(Refusal::into_failure)?;
        rows.iter().map(|row| Ok((read(row, 7)?, claim_info(row, resource)?))).collect()
    }

    /// Writes down holders of the session of this name and process. Nobody waits for the disk: after a crash
    /// of the server none of them holds any more.
    pub(crate) async fn show(
        &self,
        pool: &Pool,
        session: &str,
        pid: i32,
        holders: &[(Entry, Fence, Duration)],
    ) -> Result<(), Refusal> {
        let column = |of: fn(&Entry) -> &str| holders.iter().map(|(entry, ..)| of(entry)).collect::<Vec<_>>();
        let number = |of: fn(&(Entry, Fence, Duration)) -> i64| holders.iter().map(of).collect::<Vec<_>>();
        let (ids, names) = (column(|entry| &entry.id), column(|entry| &entry.name));
        let (keys, notes) = (column(|entry| &entry.key), column(|entry| &entry.note));
        let (weights, capacities) = (number(|holder| holder.0.weight), number(|holder| holder.0.capacity));
        let (epochs, seqs) = (number(|holder| signed(holder.1.epoch)), number(|holder| signed(holder.1.seq)));
        let ages = number(|holder| micros(holder.2));
        let parameters: &[&(dyn ToSql + Sync)] =
            &[&ids, &names, &keys, &weights, &capacities, &notes, &epochs, &seqs, &ages, &session, &pid];
        pool.query_retrying(&self.show, parameters).await.map(drop)
    }

    /// Reads which resources are held.
    pub(crate) async fn list(
        &self,
        pool: &Pool,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let (after, end) = (after.map_or("", Resource::as_str), end_of(prefix));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = pool.query_retrying(&self.list, &[&prefix, &after, &end, &limit]).await;
        let mut summaries = Vec::new();
        for row in &rows.map_err(Refusal::into_failure)? {
            // What has no name of ours is not ours.
            let Ok(resource) = Resource::new(read(row, 0)?) else { continue };
            let holders = u32::try_from(read::<i64>(row, 1)?).unwrap_or(u32::MAX);
            summaries.push(ResourceSummary::new(resource, holders, 0));
        }
        Ok(summaries)
    }
}

/// Enters claims of another session with the fences that they have, or has them again. Nobody waits for the
/// disk.
fn show(held: &str) -> Sql {
    let text = format!(
        "INSERT INTO {held} AS h (claim, name, lock_key, weight, capacity, note, epoch, seq, session, pid, since) \
         SELECT c.claim, c.name, c.lock_key, c.weight, c.capacity, c.note, c.epoch, c.seq, $10, $11, \
         clock_timestamp() - c.age::float8 * interval '1 microsecond' \
         FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9) \
         AS c (claim, name, lock_key, weight, capacity, note, epoch, seq, age) \
         WHERE pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL \
         ON CONFLICT (claim) DO UPDATE SET session = excluded.session, pid = excluded.pid, \
         epoch = excluded.epoch, seq = excluded.seq, since = excluded.since"
    );
    let types = &[
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT,
        Type::INT4,
    ];
    Sql { name: "show_holders", text, types }
}

/// Returns the statement that ends the session of the claim `$1` on the name `$2`, where the row `h`
/// fulfils the condition. It answers whether the session has ended, and what else it held; no row where
/// there is none.
///
/// The session is known by its name, which no other ever has, and not by its number alone.
pub(crate) fn evict(names: &Names, holds: &str) -> String {
    let held = names.table("_held");
    format!(
        "WITH it AS MATERIALIZED (SELECT h.pid, h.session FROM {held} h \
         WHERE h.claim = $1 AND h.name = $2 AND {ALIVE} AND {holds}), \
         beside AS MATERIALIZED (SELECT ARRAY(SELECT DISTINCT o.name FROM {held} o JOIN it USING (pid, session) \
         WHERE o.claim <> $1 ORDER BY o.name LIMIT {ALSO_RELEASED_MAX}) AS names) \
         SELECT pg_catalog.pg_terminate_backend(it.pid, {EVICTING}), beside.names FROM it, beside"
    )
}

/// Returns the outcome of [`evict`].
pub(crate) fn evicted(answer: Result<Vec<Row>, Refusal>) -> Result<Option<Vec<Resource>>, Failure> {
    let overdue = "the server accepted the request, and did not end the connection in time";
    let rows = answer.map_err(|refusal| match refusal {
        // The caller that waits for the end of a session has asked it to end.
        Refusal::Cancelled(_) => Failure::unanswered(overdue),
        refusal => refusal.into_failure(),
    });
    let rows = rows.map_err(|failure| match failure.kind {
        FailureKind::Denied => {
            let text = "another user of the database holds it, whose connections this one may not end: run it as that user, or \
                        GRANT pg_signal_backend TO the user of the URL (connections of a superuser are ended by a superuser \
                        alone)";
            Failure::new(FailureKind::Denied, failure.effect, text).because(failure)
        }
        _ => failure,
    })?;
    let Some(row) = rows.first() else { return Ok(None) };
    if !read::<bool>(row, 0)? {
        return Err(Failure::unanswered(overdue));
    }
    let names: Vec<String> = read(row, 1)?;
    Ok(Some(names.iter().filter_map(|name| Resource::new(name).ok()).collect()))
}

/// The first six parameters of a statement that enters a claim.
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) weight: i64,
    pub(crate) capacity: i64,
    pub(crate) note: String,
}

impl Entry {
    pub(crate) fn of(claim: &Claim, key: String) -> Entry {
        Entry {
            id: claim.id.to_hex(),
            name: claim.resource.as_str().to_owned(),
            key,
            weight: i64::from(claim.share.weight()),
            capacity: i64::from(claim.share.capacity()),
            note: escaped(claim.note.as_str()),
        }
    }
}

/// Writes a note without zeros, which no text of the server may have.
fn escaped(note: &str) -> String {
    note.replace('%', "%25").replace('\0', "%00")
}

fn unescaped(text: &str) -> String {
    text.replace("%00", "\0").replace("%25", "%")
}

/// Returns the beginning of a statement that enters a claim.
pub(crate) fn insert(held: &str) -> String {
    format!(
        "INSERT INTO {held} AS h (claim, name, lock_key, weight, capacity, note, session, pid, epoch, seq)"
    )
}

/// Returns the fence, as the last two columns of such a statement. It is drawn where the condition holds, which must
/// be that the lock has been given.
///
/// Nothing waits until a number is on the disk, so after a crash of the server the counter may give it again. All
/// numbers given before the crash are below the clock of that time. So one that is below the time of the last
/// checkpoint is not used, which recovery from a crash ends with: the counter is raised to the clock first.
pub(crate) fn drawn(names: &Names, given: &str) -> String {
    let counter = format!("{}::regclass", names.text("_fence"));
    // The lock is freed by the same expression. Nothing in between can fail: the rights are there, and the number was
    // drawn under the lock of the counter that `setval` needs.
    format!(
        "{epoch}, (SELECT CASE WHEN d.number >= {CHECKPOINT_ERROR}::int8 \
         + (extract(epoch FROM c.checkpoint_time)::float8 * 1000000::float8)::int8 \
         OR NOT pg_catalog.has_sequence_privilege({counter}, 'UPDATE') \
         OR NOT pg_catalog.has_sequence_privilege({counter}, 'USAGE') THEN d.number \
         WHEN pg_advisory_lock({RAISING}) IS NULL THEN NULL \
         WHEN CASE WHEN pg_sequence_last_value({counter}) < {NOW} - {RAISED_MIN}::int8 THEN setval({counter}, {NOW}) \
         ELSE 0::int8 END < 0::int8 THEN NULL \
         WHEN pg_advisory_unlock({RAISING}) THEN nextval({counter}) END \
         FROM (SELECT nextval({counter}) AS number WHERE {given} OFFSET 0) d, pg_catalog.pg_control_checkpoint() c)",
        epoch = epoch(names)
    )
}

/// The key of the advisory lock under which the counter is raised to the clock.
const RAISING: i64 = CREATING + 1;
/// Microseconds by which the time of a checkpoint may be too early: the server notes it in whole seconds.
const CHECKPOINT_ERROR: i64 = 1_000_000;
/// Microseconds by which the counter must be behind the clock to be raised: others cannot draw so many numbers between
/// the comparison and the change. A server does not start anew in so short a time.
const RAISED_MIN: i64 = 1_000;

/// Columns of an entry, as parameters.
pub(crate) const CLAIM: &str = "$1, $2, $3, $4, $5, $6";

/// A claim that asks again after its first answer was lost has a row of a session that is gone.
pub(crate) const AGAIN: &str = "ON CONFLICT (claim) DO UPDATE SET session = excluded.session, pid = excluded.pid, \
                                epoch = excluded.epoch, seq = excluded.seq, since = clock_timestamp()";

/// The condition that the session of a row lives. Its name is drawn at random, because process ids are used
/// again.
pub(crate) const ALIVE: &str = "EXISTS (SELECT FROM pg_catalog.pg_stat_activity a WHERE a.pid = h.pid \
                                AND a.application_name = h.session)";

/// Milliseconds that the server waits for the end of a session. It takes a few, unless the session is at
/// work.
const EVICTING: u32 = 2_000;

/// The most names of locks that are reported to have ended with another.
const ALSO_RELEASED_MAX: u32 = 1_000;

/// Rows that are cleared away at a time.
const CLEARED_MAX: u32 = 500;

fn claim_info(row: &Row, resource: &Resource) -> Result<ClaimInfo, Failure> {
    let unreadable = || {
        let text = format!("the table of holders has a row for {resource:?} that is not ours");
        Failure::new(FailureKind::Foreign, Effect::None, text)
    };
    let number = |at| read::<i64>(row, at).map(|number| u32::try_from(number).unwrap_or_default());
    Ok(ClaimInfo::new(
        ClaimId::from_hex(read(row, 0)?).ok_or_else(unreadable)?,
        Share::permits(number(1)?, number(2)?).map_err(|_| unreadable())?,
    )
    .fence(Some(fence(row, 4)?))
    .since_unix_ms(u64::try_from(read::<i64>(row, 6)?).ok())
    .note(Note::clipped(&unescaped(read(row, 3)?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        for note in ["", "50% of", "a\0b", "%00", "%25", "%2500", "%\0%", "é\n"] {
            let text = escaped(note);
            assert!(!text.contains('\0'), "{text:?}");
            assert_eq!(unescaped(&text), note);
        }
    }
}
