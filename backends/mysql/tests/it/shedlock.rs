//! ShedLock's table, shared with a scheduler that sends ShedLock's documented statements through another
//! client.

use std::time::Duration;

use crate::common::*;
use leasehold_conformance::shedlock::{self, HOST, Scheduler};
use leasehold_core::{FailureKind, Note, Patience, Release, Severity};
use leasehold_mysql::{MySqlConfig, grants, schema};
use leasehold_testkit::{Data, MariaDbServer};

/// The table as ShedLock's documentation has it.
const DOCUMENTED: &str = "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, \
                          locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), \
                          locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";

const NOW: &str = "UTC_TIMESTAMP(3)";

/// The statements of a provider with `usingDbTime()`; the count of changed rows is its answer.
struct Java<'a>(&'a MariaDbServer);

#[async_trait::async_trait]
impl Scheduler for Java<'_> {
    async fn lock(&self, name: &str, at_most: Duration) -> bool {
        let until = after(NOW, at_most);
        let insert = format!(
            "INSERT IGNORE INTO shedlock(name, lock_until, locked_at, locked_by) \
             VALUES('{name}', {until}, {NOW}, '{HOST}')"
        );
        let update = format!(
            "UPDATE shedlock SET lock_until = {until}, locked_at = {NOW}, locked_by = '{HOST}' \
             WHERE name = '{name}' AND lock_until <= {NOW}"
        );
        self.changed(&insert).await || self.changed(&update).await
    }

    async fn extend(&self, name: &str, at_most: Duration) -> bool {
        self.changed(&format!(
            "UPDATE shedlock SET lock_until = {} WHERE name = '{name}' AND locked_by = '{HOST}' \
             AND lock_until > {NOW}",
            after(NOW, at_most)
        ))
        .await
    }

    async fn unlock(&self, name: &str, at_least: Duration) -> bool {
        let least = after("locked_at", at_least);
        self.changed(&format!(
            "UPDATE shedlock SET lock_until = IF({least} > {NOW}, {least}, {NOW}) \
             WHERE name = '{name}' AND locked_by = '{HOST}'"
        ))
        .await
    }

    async fn empty(&self) -> usize {
        let rows = self.0.sql("SELECT count(*) FROM shedlock").await.unwrap();
        self.0.sql("DELETE FROM shedlock").await.unwrap();
        rows.trim().parse().unwrap()
    }
}

impl Java<'_> {
    async fn changed(&self, statement: &str) -> bool {
        let counted = format!("{statement}; SELECT ROW_COUNT()");
        self.0.sql(&counted).await.unwrap().trim() == "1"
    }
}

fn after(moment: &str, span: Duration) -> String {
    format!("TIMESTAMPADD(MICROSECOND, {}, {moment})", span.as_micros())
}

fn url(server: &MariaDbServer) -> String {
    format!("{}?dialect=shedlock", server.url())
}

/// In the forms that are in use, and in that which is made for those who have none.
#[tokio::test]
async fn scheduler_and_backend_exclude_each_other() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let old = format!("{DOCUMENTED} CHARACTER SET latin1 COLLATE latin1_general_cs");
    let dates =
        DOCUMENTED.replace("TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)", "DATETIME(6) NOT NULL");
    let dates = dates.replace("TIMESTAMP(3)", "DATETIME(6)");
    for (table, zone) in
        [(DOCUMENTED, "+05:30"), (&old, "+00:00"), (&dates, "+05:30"), ("SET @no_table = 1", "+00:00")]
    {
        server.sql(&format!("SET GLOBAL time_zone = '{zone}'")).await.unwrap();
        server.sql(&format!("DROP TABLE IF EXISTS shedlock; {table}")).await.unwrap();
        let backend = open(&url(&server)).await;
        shedlock::scheduler_and_backend_exclude_each_other(&*backend, &Java(&server)).await;
        let by = server.sql("SELECT locked_by FROM shedlock WHERE name = 'report'").await.unwrap();
        assert_eq!(by.trim(), HOST, "{table}");
    }
}

#[tokio::test]
async fn expired_lock_of_one_program_is_taken_by_the_other() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let (backend, java) = (open(&url(&server)).await, Java(&server));
    shedlock::abandoned_lock_is_taken_over(&*backend, &java).await;
}

#[tokio::test]
async fn impossible_name_hides_no_later_row() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let (backend, java) = (open(&url(&server)).await, Java(&server));
    shedlock::impossible_name_hides_no_later_row(&*backend, &java).await;
}

#[tokio::test]
async fn the_documented_table_has_room_for_every_name_and_note() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql(DOCUMENTED).await.unwrap();
    let backend = open(&format!("{}&create=no", url(&server))).await;
    shedlock::longest_names_and_notes_fit(&*backend).await;
    // What the column holds for equal is one lock, and said to be.
    hold(&*backend, &claim("Job", LONG)).await;
    assert!(look_once(&*backend, &claim("job", LONG)).await.unwrap().is_none());
    let seen = backend.inspect(&resource("JOB"), None, &Patience::none(clock())).await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    assert_eq!(shedlock::finding(&*backend, "names").await.severity, Severity::Notice);
}

#[tokio::test]
async fn unsupported_requests_are_refused_or_reported() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let url = url(&server);
    let failure = connect(&format!("{url}&create=no")).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    server
        .sql("CREATE TABLE other(name varchar(64), lock_until date, locked_at date, locked_by text)")
        .await
        .unwrap();
    let failure = connect(&format!("{url}&table=other")).await.unwrap_err();
    assert!(failure.to_string().contains("make both timestamp"), "{failure}");

    let backend = open(&url).await;
    shedlock::unsupported_shares_and_fences_are_refused(&*backend).await;
    let ahead = "INSERT INTO shedlock VALUES('east', UTC_TIMESTAMP() + INTERVAL 3 HOUR, \
                 UTC_TIMESTAMP() + INTERVAL 2 HOUR, 'app-2')";
    shedlock::rows_from_the_future_are_found(&*backend, async || drop(server.sql(ahead).await.unwrap()))
        .await;
}

/// A table of a narrow character set shows what it can of a note, and refuses names that it cannot have.
#[tokio::test]
async fn narrow_table_excludes_holders_and_refuses_unwritable_names() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql(&format!("{DOCUMENTED} CHARACTER SET latin1")).await.unwrap();
    server.sql("SET GLOBAL time_zone = 'Europe/Paris'").await.unwrap_err();
    server.sql("SET GLOBAL time_zone = '+01:00'").await.unwrap();
    let backend = open(&url(&server)).await;
    let held = claim("jób", LONG).note(Note::new("作业 é").unwrap());
    hold(&*backend, &held).await;
    let seen = backend.inspect(&resource("jób"), None, &Patience::none(clock())).await.unwrap();
    assert_eq!(seen.holders[0].note.as_str(), "?? ?");
    assert_eq!(backend.list("jó", None, 10).await.unwrap().len(), 1);
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    let failure = look_once(&*backend, &claim("作业", LONG)).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    assert!(failure.to_string().contains("utf8mb4"), "{failure}");
    assert_eq!(shedlock::finding(&*backend, "zone").await.severity, Severity::Risk);
}

#[tokio::test]
async fn user_without_create_rights_uses_the_printed_schema() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql("CREATE USER app").await.unwrap();
    let url = format!("mysql://app@{}/locks?dialect=shedlock&create=no", server.addr());
    let config = MySqlConfig::parse(&url).unwrap();
    for _ in 0..2 {
        server.sql(&schema(&config)).await.unwrap();
    }
    assert_eq!(connect(&url).await.unwrap_err().kind, FailureKind::Denied);
    server.sql(&grants(&config)).await.unwrap();
    shedlock::each_claim_of_a_batch_is_answered(&*open(&url).await, &Java(&server)).await;
}

#[tokio::test]
async fn restart_keeps_the_lock_and_table_loss_loses_it() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    shedlock::restart_keeps_the_lock_and_table_loss_loses_it(
        &*open(&url(&server)).await,
        async || server.restart(Data::Keep).await.unwrap(),
        async || server.restart(Data::Lose).await.unwrap(),
    )
    .await;
}
