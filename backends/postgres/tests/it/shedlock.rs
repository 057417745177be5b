//! ShedLock's table, shared with a scheduler that sends ShedLock's documented statements through another
//! client.

use std::time::Duration;

use crate::common::*;
use leasehold_conformance::shedlock::{self, HOST, Scheduler};
use leasehold_core::FailureKind;
use leasehold_testkit::{Data, PostgresServer};

/// The table as ShedLock's documentation has it.
const DOCUMENTED: &str = "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, \
                          locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";

const NOW: &str = "timezone('utc', CURRENT_TIMESTAMP)";

/// The statements of a provider with `usingDbTime()`; the count of changed rows is its answer.
struct Java<'a>(&'a PostgresServer);

#[async_trait::async_trait]
impl Scheduler for Java<'_> {
    async fn lock(&self, name: &str, at_most: Duration) -> bool {
        let until = after(NOW, at_most);
        self.changed(&format!(
            "INSERT INTO shedlock(name, lock_until, locked_at, locked_by) VALUES('{name}', {until}, {NOW}, '{HOST}') \
             ON CONFLICT (name) DO UPDATE SET lock_until = {until}, locked_at = {NOW}, locked_by = '{HOST}' \
             WHERE shedlock.name = '{name}' AND shedlock.lock_until <= {NOW}"
        ))
        .await
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
            "UPDATE shedlock SET lock_until = CASE WHEN {least} > {NOW} THEN {least} ELSE {NOW} END \
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
        let counted = format!("WITH done AS ({statement} RETURNING 1) SELECT count(*) FROM done");
        self.0.sql(&counted).await.unwrap().trim() == "1"
    }
}

fn after(moment: &str, span: Duration) -> String {
    format!("{moment} + make_interval(secs => {})", span.as_secs_f64())
}

fn url(server: &PostgresServer) -> String {
    format!("{}?dialect=shedlock", server.url())
}

#[tokio::test]
async fn scheduler_and_backend_exclude_each_other() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for table in [DOCUMENTED.to_owned(), DOCUMENTED.replace("TIMESTAMP", "TIMESTAMPTZ")] {
        server.sql(&format!("DROP TABLE IF EXISTS shedlock; {table}")).await.unwrap();
        // A column with a zone and a session in another one than UTC do not go together with ShedLock's
        // statements.
        server.sql("ALTER ROLE postgres SET timezone = 'UTC'").await.unwrap();
        let backend = open(&url(&server)).await;
        shedlock::scheduler_and_backend_exclude_each_other(&*backend, &Java(&server)).await;
    }
}

#[tokio::test]
async fn expired_lock_of_one_program_is_taken_by_the_other() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let (backend, java) = (open(&url(&server)).await, Java(&server));
    shedlock::abandoned_lock_is_taken_over(&*backend, &java).await;
}

#[tokio::test]
async fn impossible_name_hides_no_later_row() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let (backend, java) = (open(&url(&server)).await, Java(&server));
    shedlock::impossible_name_hides_no_later_row(&*backend, &java).await;
}

#[tokio::test]
async fn the_documented_table_has_room_for_every_name_and_note() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    server.sql(DOCUMENTED).await.unwrap();
    shedlock::longest_names_and_notes_fit(&*open(&format!("{}&create=no", url(&server))).await).await;
}

#[tokio::test]
async fn unsupported_requests_are_refused_or_reported() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let url = url(&server);
    let failure = connect(&format!("{url}&create=no")).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    server
        .sql("CREATE TABLE other(name text, lock_until date, locked_at date, locked_by text)")
        .await
        .unwrap();
    let failure = connect(&format!("{url}&table=other")).await.unwrap_err();
    assert!(failure.to_string().contains("make both timestamp"), "{failure}");

    let backend = open(&url).await;
    shedlock::unsupported_shares_and_fences_are_refused(&*backend).await;
    let ahead = "INSERT INTO shedlock VALUES('east', timezone('utc', now()) + interval '3 hours', \
                 timezone('utc', now()) + interval '2 hours', 'app-2')";
    shedlock::rows_from_the_future_are_found(&*backend, async || drop(server.sql(ahead).await.unwrap()))
        .await;
}

#[tokio::test]
async fn restart_keeps_the_lock_and_table_loss_loses_it() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    shedlock::restart_keeps_the_lock_and_table_loss_loses_it(
        &*open(&url(&server)).await,
        async || server.restart(Data::Keep).await.unwrap(),
        async || server.restart(Data::Lose).await.unwrap(),
    )
    .await;
}
