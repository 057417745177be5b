//! The schema of the tables, where the URL names none and search paths differ.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{Backend, Failure, FailureKind, Finding, Release, Renewal, Severity};
use leasehold_postgres::{PostgresConfig, sweep};
use leasehold_testkit::{PgBouncer, PoolMode, PostgresServer};

const METHODS: [&str; 4] = ["method=row", "method=advisory", "method=for-update", "dialect=shedlock"];

/// Returns the URL of a role that was made by [`make_role`].
fn url(server: &PostgresServer, role: &str, options: &str) -> String {
    format!("postgres://{role}@{}/postgres?{options}", server.addr())
}

/// Makes a role that may create tables in `public`, and has a schema `own` for itself.
async fn make_role(server: &PostgresServer, role: &str, own: &str) {
    let own = format!("CREATE SCHEMA {own} AUTHORIZATION {role}");
    server
        .sql(&format!("CREATE ROLE {role} LOGIN; GRANT CREATE ON SCHEMA public TO {role}; {own}"))
        .await
        .unwrap();
}

/// Returns the tables and sequences of a schema.
async fn tables(server: &PostgresServer, schema: &str) -> String {
    let found = format!(
        "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace \
         WHERE nspname = '{schema}' AND relkind IN ('r', 'S')"
    );
    server.sql(&found).await.unwrap().trim().to_owned()
}

fn assert_advises(result: Result<std::sync::Arc<dyn Backend>, Failure>, words: &str) {
    let failure = result.map(drop).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    assert!(failure.detail().contains(words), "{failure}");
    assert!(failure.detail().contains("name schema= in the URL"), "{failure}");
}

async fn schema_finding(backend: &dyn Backend) -> Finding {
    let findings = backend.diagnose(LONG).await;
    findings.into_iter().find(|finding| finding.topic == "schema").unwrap()
}

#[tokio::test]
async fn session_of_a_pooler_with_another_search_path_has_no_second_holder() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for options in ["method=row", "method=for-update", "dialect=shedlock"] {
        let Some(pooler) = PgBouncer::start_or_skip(&server, PoolMode::Transaction, 1).await else { return };
        let plain = server.url_at(pooler.addr());
        let url = |more: &str| format!("{plain}?{options}{more}");
        let early = open(&url("")).await;
        let (stranger, connection) = tokio_postgres::connect(&plain, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        stranger.batch_execute("CREATE SCHEMA tenant; SET search_path TO tenant").await.unwrap();
        // Where there are no tables to be seen.
        assert_advises(connect(&url("")).await, "another program of a pooler");
        let held = claim("job", LONG);
        // A transaction would keep the one session for itself.
        if options != "method=for-update" {
            hold(&*early, &held).await;
            assert!(matches!(renew(&*early, &held).await, Renewal::Renewed), "{options}");
            let beside = open(&url("&schema=public")).await;
            assert!(look_once(&*beside, &claim("job", LONG)).await.unwrap().is_none(), "{options}");
            assert!(matches!(release(&*early, &held).await, Release::Freed), "{options}");
        }
        assert_eq!(tables(&server, "tenant").await, "", "{options}");
        // And where there are some.
        open(&url("&schema=tenant")).await;
        assert_ne!(tables(&server, "tenant").await, "", "{options}");
        assert_advises(connect(&url("")).await, "another program of a pooler");
        server.sql("DROP SCHEMA tenant CASCADE").await.unwrap();
    }
}

#[tokio::test]
async fn search_path_that_is_changed_leads_no_client_to_other_tables() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    make_role(&server, "jobs", "later").await;
    for options in METHODS {
        let backend = open(&url(&server, "jobs", options)).await;
        let held = claim("job", LONG);
        hold(&*backend, &held).await;
        server.sql("ALTER ROLE jobs SET search_path = later").await.unwrap();
        for create in ["", "&create=no"] {
            let there = url(&server, "jobs", &format!("{options}{create}"));
            assert_advises(connect(&there).await, "\"public\" has");
        }
        let same = open(&url(&server, "jobs", &format!("{options}&schema=public"))).await;
        assert!(look_once(&*same, &claim("job", LONG)).await.unwrap().is_none(), "{options}");

        // All further connections have the new path.
        server
            .sql("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'jobs'")
            .await
            .unwrap();
        let held = if options == "method=row" || options == "dialect=shedlock" {
            assert!(matches!(renew_until_known(&*backend, &held).await, Renewal::Renewed), "{options}");
            held
        } else {
            let again = claim("job", LONG);
            take(&*backend, &again).await;
            again
        };
        assert!(look_once(&*same, &claim("job", LONG)).await.unwrap().is_none(), "{options}");
        assert!(matches!(release_until_known(&*backend, &held).await, Release::Freed), "{options}");
        assert_eq!(tables(&server, "later").await, "", "{options}");

        // What is lost is made anew where it was.
        server.sql("DROP OWNED BY jobs; CREATE SCHEMA later AUTHORIZATION jobs").await.unwrap();
        server.sql("GRANT CREATE ON SCHEMA public TO jobs").await.unwrap();
        assert_eq!(tables(&server, "public").await, "", "{options}");
        take(&*backend, &claim("another", LONG)).await;
        assert_ne!(tables(&server, "public").await, "", "{options}");
        assert_eq!(tables(&server, "later").await, "", "{options}");
        drop((backend, same));
        server.sql("ALTER ROLE jobs RESET search_path; DROP OWNED BY jobs").await.unwrap();
        server.sql("CREATE SCHEMA later AUTHORIZATION jobs").await.unwrap();
        server.sql("GRANT CREATE ON SCHEMA public TO jobs").await.unwrap();
    }
}

/// Another method of the same role adds its tables to those that are there.
#[tokio::test]
async fn tables_of_all_methods_are_in_one_schema() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    server.sql("CREATE ROLE jobs LOGIN; GRANT CREATE ON SCHEMA public TO jobs").await.unwrap();
    open(&url(&server, "jobs", "method=row")).await;
    // Now it is the first one of the search path.
    server.sql("CREATE SCHEMA jobs AUTHORIZATION jobs").await.unwrap();
    for options in ["method=row", "method=advisory", "method=for-update"] {
        hold(&*open(&url(&server, "jobs", options)).await, &claim("job", LONG)).await;
    }
    assert_eq!(tables(&server, "jobs").await, "");
}

/// This is documented: the default is the schema to which the search path of the role leads.
#[tokio::test]
async fn stores_of_roles_with_schemas_of_their_own_are_reported() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    make_role(&server, "one", "one").await;
    make_role(&server, "two", "two").await;
    for options in METHODS {
        let one = open(&url(&server, "one", options)).await;
        let alone = schema_finding(&*one).await;
        assert_eq!(alone.severity, Severity::Good, "{options}: {alone:?}");
        assert!(alone.found.contains("\"one\""), "{options}: {alone:?}");
        let two = open(&url(&server, "two", options)).await;
        for backend in [one, two] {
            let several = schema_finding(&*backend).await;
            assert_eq!(several.severity, Severity::Notice, "{options}: {several:?}");
            assert!(several.found.contains("\"one\"") && several.found.contains("\"two\""), "{several:?}");
            assert!(several.advice.contains("schema="), "{several:?}");
        }
        server.sql("DROP OWNED BY one, two").await.unwrap();
        server.sql("CREATE SCHEMA one AUTHORIZATION one; CREATE SCHEMA two AUTHORIZATION two").await.unwrap();
    }
}

#[tokio::test]
async fn schema_of_any_name_is_used() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    make_role(&server, "jobs", r#""it's a ""b\c""#).await;
    server.sql(r#"ALTER ROLE jobs SET search_path = "it's a ""b\c""#).await.unwrap();
    for options in METHODS {
        let backend = open(&url(&server, "jobs", options)).await;
        let held = claim("job", LONG);
        hold(&*backend, &held).await;
        let next = open(&url(&server, "jobs", options)).await;
        assert!(look_once(&*next, &claim("job", LONG)).await.unwrap().is_none(), "{options}");
        for finding in backend.diagnose(LONG).await {
            assert_ne!(finding.severity, Severity::Unknown, "{options}: {finding:?}");
        }
        assert!(matches!(release(&*backend, &held).await, Release::Freed), "{options}");
        take(&*next, &claim("job", LONG)).await;
    }
    let config = PostgresConfig::parse(&url(&server, "jobs", "method=row")).unwrap();
    sweep(config, clock(), Duration::ZERO).await.unwrap();
    assert_eq!(tables(&server, "public").await, "");
}
