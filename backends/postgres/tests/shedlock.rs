//! ShedLock's table, shared with a scheduler that sends ShedLock's documented statements through another client.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod common;

use std::time::Duration;

use common::*;
use leasehold_core::{Claim, FailureKind, Grade, Note, Patience, Release, Renewal, Severity, Share, Step};
use leasehold_testkit::{Data, PostgresServer};

/// The table as ShedLock's documentation has it.
const DOCUMENTED: &str = "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, \
                          locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";

const NOW: &str = "timezone('utc', CURRENT_TIMESTAMP)";

/// What a provider with `usingDbTime()` sends; the count of changed rows is its answer.
struct Scheduler<'a> {
    server: &'a PostgresServer,
    host: &'a str,
}

impl Scheduler<'_> {
    async fn lock(&self, name: &str, at_most: f64) -> bool {
        let (host, until) = (self.host, format!("{NOW} + make_interval(secs => {at_most})"));
        self.changed(&format!(
            "INSERT INTO shedlock(name, lock_until, locked_at, locked_by) VALUES('{name}', {until}, {NOW}, '{host}') \
             ON CONFLICT (name) DO UPDATE SET lock_until = {until}, locked_at = {NOW}, locked_by = '{host}' \
             WHERE shedlock.name = '{name}' AND shedlock.lock_until <= {NOW}"
        ))
        .await
    }

    async fn extend(&self, name: &str, at_most: f64) -> bool {
        let (host, until) = (self.host, format!("{NOW} + make_interval(secs => {at_most})"));
        self.changed(&format!(
            "UPDATE shedlock SET lock_until = {until} WHERE name = '{name}' AND locked_by = '{host}' \
             AND lock_until > {NOW}"
        ))
        .await
    }

    async fn unlock(&self, name: &str, at_least: f64) -> bool {
        let least = format!("locked_at + make_interval(secs => {at_least})");
        self.changed(&format!(
            "UPDATE shedlock SET lock_until = CASE WHEN {least} > {NOW} THEN {least} ELSE {NOW} END \
             WHERE name = '{name}' AND locked_by = '{}'",
            self.host
        ))
        .await
    }

    async fn changed(&self, statement: &str) -> bool {
        let counted = format!("WITH done AS ({statement} RETURNING 1) SELECT count(*) FROM done");
        self.server.sql(&counted).await.unwrap().trim() == "1"
    }
}

#[tokio::test]
async fn a_scheduler_and_we_exclude_each_other() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for table in [DOCUMENTED.to_owned(), DOCUMENTED.replace("TIMESTAMP", "TIMESTAMPTZ")] {
        server.sql(&format!("DROP TABLE IF EXISTS shedlock; {table}")).await.unwrap();
        // A column with a zone and a session in another one than UTC do not go together with ShedLock's statements.
        server.sql("ALTER ROLE postgres SET timezone = 'UTC'").await.unwrap();
        let java = Scheduler { server: &server, host: "app-1" };
        let backend = open(&format!("{}?dialect=shedlock", server.url())).await;

        assert!(java.lock("report", 60.0).await);
        let ours = claim("report", LONG);
        assert!(look_once(&*backend, &ours).await.unwrap().is_none(), "it is the scheduler's");
        let seen = backend.inspect(&resource("report"), None, &Patience::none(clock())).await.unwrap();
        assert_eq!(seen.holders[0].note.as_str(), "app-1");
        assert!(seen.holders[0].remaining.unwrap() > Duration::from_secs(50), "{seen:?}");
        assert!(matches!(renew(&*backend, &ours).await, Renewal::Lost));
        assert!(matches!(release(&*backend, &ours).await, Release::Gone), "it is not ours");
        assert!(java.extend("report", 60.0).await, "nobody touched it");
        assert!(java.unlock("report", 0.0).await);

        hold(&*backend, &ours).await;
        assert!(!java.lock("report", 60.0).await, "it is ours");
        assert!(!java.unlock("report", 0.0).await && !java.extend("report", 60.0).await);
        assert!(matches!(renew(&*backend, &ours).await, Renewal::Renewed));
        let by = server.sql("SELECT locked_by FROM shedlock WHERE name = 'report'").await.unwrap();
        assert!(by.starts_with("leasehold "), "{by}");
        assert!(matches!(release(&*backend, &ours).await, Release::Freed));
        assert!(java.lock("report", 60.0).await, "it is free");

        // What holds for a while at least stays held after it was unlocked.
        assert!(java.unlock("report", 60.0).await);
        assert!(look_once(&*backend, &ours).await.unwrap().is_none(), "at least for a minute");
    }
}

#[tokio::test]
async fn what_one_leaves_behind_the_other_takes_when_its_time_is_over() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?dialect=shedlock", server.url())).await;
    let java = Scheduler { server: &server, host: "app-1" };
    assert!(java.lock("a", 0.4).await);
    let waiting = claim("a", LONG);
    let began = std::time::Instant::now();
    take(&*backend, &waiting).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(!java.unlock("a", 0.0).await, "a late unlock spares the next holder");

    let short = claim("b", Duration::from_millis(400));
    hold(&*backend, &short).await;
    assert!(!java.lock("b", 60.0).await);
    tokio::time::sleep(Duration::from_millis(450)).await;
    assert!(java.lock("b", 60.0).await, "its time is over");
    assert!(matches!(renew(&*backend, &short).await, Renewal::Lost));
    assert!(matches!(release(&*backend, &short).await, Release::Gone));
    assert!(java.extend("b", 60.0).await, "a late release spares the next holder");
    assert_eq!(server.sql("SELECT count(*) FROM shedlock").await.unwrap().trim(), "2", "no row is deleted");
}

#[tokio::test]
async fn whoever_saw_it_may_break_a_lock_of_the_others() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?dialect=shedlock", server.url())).await;
    let java = Scheduler { server: &server, host: "app-1" };
    assert!(java.lock("a", 60.0).await);
    let seen = backend.inspect(&resource("a"), None, &Patience::none(clock())).await.unwrap();
    let id = seen.holders[0].id;
    let claim = Claim { id, ..claim("a", LONG) };
    assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    assert!(!java.extend("a", 60.0).await, "it was ended");
    assert!(java.lock("a", 60.0).await);
}

#[tokio::test]
async fn the_documented_table_has_room_for_every_name_and_note() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    server.sql(DOCUMENTED).await.unwrap();
    let backend = open(&format!("{}?dialect=shedlock&create=no", server.url())).await;
    let (one, two) = ("x".repeat(511) + "1", "x".repeat(511) + "2");
    let note = Note::new(&"é".repeat(512)).unwrap();
    let one = Claim { note, ..claim(&one, LONG) };
    hold(&*backend, &one).await;
    hold(&*backend, &claim(&two, LONG)).await;
    assert!(look_once(&*backend, &claim(one.resource.as_str(), LONG)).await.unwrap().is_none());
    assert!(matches!(renew(&*backend, &one).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &one).await, Release::Freed));
}

#[tokio::test]
async fn what_it_cannot_promise_is_refused_or_told() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let url = format!("{}?dialect=shedlock", server.url());
    let failure = connect(&format!("{url}&create=no")).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    server
        .sql("CREATE TABLE other(name text, lock_until date, locked_at date, locked_by text)")
        .await
        .unwrap();
    let failure = connect(&format!("{url}&table=other")).await.unwrap_err();
    assert!(failure.to_string().contains("make both timestamp"), "{failure}");

    let backend = open(&url).await;
    assert_eq!(backend.profile().fencing, Grade::None);
    let shared = Claim { share: Share::READER, ..claim("a", LONG) };
    let failure = backend.contend(&shared, &Patience::none(clock())).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);

    let clock_of = async || {
        let findings = backend.examine(LONG).await;
        findings.into_iter().find(|finding| finding.topic == "clock").unwrap()
    };
    assert_eq!(clock_of().await.severity, Severity::Good);
    // A provider that writes local time, east of Greenwich.
    let ahead = "INSERT INTO shedlock VALUES('east', timezone('utc', now()) + interval '3 hours', \
                 timezone('utc', now()) + interval '2 hours', 'app-2')";
    server.sql(ahead).await.unwrap();
    let finding = clock_of().await;
    assert!(finding.severity == Severity::Risk && finding.advice.contains("usingDbTime"), "{finding:?}");
}

#[tokio::test]
async fn a_restart_keeps_it_and_the_loss_of_the_table_is_a_loss() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?dialect=shedlock", server.url())).await;
    let held = claim("job", LONG);
    hold(&*backend, &held).await;
    server.restart(Data::Keep).await.unwrap();
    assert!(matches!(renew_at_last(&*backend, &held).await, Renewal::Renewed));
    let step = backend.contend(&held, &Patience::none(clock())).await.unwrap();
    assert!(matches!(step, Step::Granted(_)), "its own request, repeated");
    server.restart(Data::Lose).await.unwrap();
    assert!(matches!(renew_at_last(&*backend, &held).await, Renewal::Lost));
    take(&*backend, &claim("job", LONG)).await;
}
