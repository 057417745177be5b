//! `show`, `ls`, `watch` and `break`.

use std::os::unix::process::ExitStatusExt;

use leasehold_testkit::{MariaDbServer, PostgresServer};
use rustix::process::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::support::{Redis, Sandbox, Started};

fn sandboxes() -> (Option<Redis>, Vec<Sandbox>) {
    let redis = Redis::start_or_skip();
    let sandboxes = [Some(Sandbox::new()), redis.as_ref().map(|redis| Sandbox::on(&redis.server.url()))];
    (redis, sandboxes.into_iter().flatten().collect())
}

#[test]
fn show_lists_holders_and_waiters() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        assert_eq!(sandbox.end(&["show", "job"]).expect(0).out, "job: free\n");
        let holder = sandbox.hold(&["--note", "ann", "job"]);
        let waiter = sandbox.start(&["--shared", "--note", "ben", "job"], "true");
        sandbox.wait_for_line("job", 1, 1);
        let shown = sandbox.end(&["show", "job"]).expect(0);
        let lines: Vec<_> = shown.out.lines().collect();
        assert_eq!((lines.len(), lines[0]), (3, "job: held, 1 waiting"), "{shown:?}");
        for part in ["holder", "mutex", "fence 0", "since 20", "ago)", "ann"] {
            assert!(lines[1].contains(part), "{part} in {lines:?}");
        }
        assert!(lines[2].contains("waiter 1") && lines[2].contains("reader") && lines[2].ends_with("ben"));
        assert!(!shown.out.contains('\x1b'));
        holder.end().expect(0);
        waiter.end().expect(0);
        let shown = sandbox.end(&["show", "job"]).expect(0);
        assert!(shown.out.starts_with("job: free, last fence 0"), "{shown:?}");
    }
}

#[test]
fn looking_at_a_missing_database_creates_none() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("mistyped.db");
    let url = format!("sqlite:{}", file.display());
    for args in [&["show", "job"][..], &["ls"], &["break", "--yes", "job"], &["sweep"], &["doctor"]] {
        let args = [args, &["--store", &url]].concat();
        let ended = sandbox.end(&args).expect(78).says("no such database");
        let shown = ended.err.rsplit("the store is ").next().unwrap_or_default();
        assert!(shown.starts_with(&format!("{url}, ")), "{}", ended.err);
        assert!(!file.exists());
    }
    sandbox.end(&["run", "--store", &url, "job", "--", "true"]).expect(0);
    assert_eq!(sandbox.end(&["show", "--store", &url, "job"]).expect(0).out.lines().count(), 1);
}

#[test]
fn the_json_of_show_has_its_documented_shape() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let free = sandbox.show("job");
        assert_eq!((&free["name"], &free["state"]), (&Value::from("job"), &Value::from("free")));
        assert_eq!((&free["holders"], &free["waiting"]), (&Value::Array(vec![]), &Value::Array(vec![])));
        let holder = sandbox.hold(&["--note", "ann", "--ttl", "20s", "job"]);
        let held = sandbox.show("job");
        let claim = &held["holders"][0];
        assert_eq!(held["state"], "held");
        assert_eq!(held["fence"], claim["fence"]);
        assert_eq!(claim["share"], "mutex");
        assert_eq!((claim["weight"].as_u64(), claim["capacity"].as_u64()), (Some(1), Some(1)));
        assert_eq!(claim["tag"].as_str().unwrap().len(), 32);
        assert!(claim["since"].as_str().unwrap().ends_with('Z'));
        assert!(claim["since_unix_ms"].as_u64().unwrap() > 1_600_000_000_000);
        assert!(claim["remaining_ms"].is_null() || claim["remaining_ms"].as_u64().unwrap() <= 20_000);
        assert_eq!(claim["note"], "ann");
        let mut keys: Vec<_> = claim.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        let all =
            ["capacity", "fence", "note", "remaining_ms", "share", "since", "since_unix_ms", "tag", "weight"];
        assert_eq!(keys, all);
        holder.end().expect(0);
    }
}

#[test]
fn ls_lists_what_is_held_or_waited_for_by_prefix() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        assert_eq!(sandbox.end(&["ls"]).expect(0).out, "");
        let holders = [sandbox.hold(&["a/1"]), sandbox.hold(&["a/2"]), sandbox.hold(&["b \u{202e}x"])];
        let waiter = sandbox.start(&["a/2"], "true");
        sandbox.wait_for_line("a/2", 1, 1);
        let listed = sandbox.end(&["ls"]).expect(0).out;
        assert_eq!(listed, "a/1          1 held\na/2          1 held  1 waiting\nb \\u{202e}x  1 held\n");
        assert_eq!(sandbox.end(&["ls", "b"]).expect(0).out, "b \\u{202e}x  1 held\n");
        let json = sandbox.end(&["ls", "--json", "a/"]).expect(0).out;
        let expected = "{\"name\":\"a/1\",\"holders\":1,\"waiting\":0}\n{\"name\":\"a/2\",\"holders\":1,\"waiting\":1}\n";
        assert_eq!(json, expected);
        for holder in holders {
            holder.end().expect(0);
        }
        waiter.end().expect(0);
        assert_eq!(sandbox.end(&["ls"]).expect(0).out, "");
    }
}

#[test]
fn watch_prints_a_line_for_every_change_until_it_is_interrupted() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let text = Started::new(sandbox.leasehold(&["watch", "job"]));
        let json = Started::new(sandbox.leasehold(&["watch", "--json", "job"]));
        text.line_with("free");
        let first: Value = serde_json::from_str(&json.line_with("")).unwrap();
        assert_eq!(first["state"], "free");
        assert!(first["at"].as_str().unwrap().ends_with('Z'));
        let holder = sandbox.hold(&["--note", "ann", "job"]);
        assert!(text.line_with("held by ann").contains("fence 0"));
        let held: Value = serde_json::from_str(&json.line_with("ann")).unwrap();
        assert_eq!(held["holders"][0]["note"], "ann");
        holder.end().expect(0);
        text.line_with("free");
        json.line_with("\"free\"");
        for watcher in [text, json] {
            watcher.signal(Signal::INT);
            let ended = watcher.end();
            assert_eq!(ended.status.signal(), Some(2), "{ended:?}");
        }
    }
}

#[test]
fn watch_outlives_a_short_absence_of_the_server() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let watcher = Started::new(sandbox.leasehold(&["watch", "job"]));
    watcher.line_with("free");
    redis.block_on(redis.server.restart(leasehold_testkit::Data::Keep)).unwrap();
    let holder = sandbox.hold(&["--note", "ann", "job"]);
    watcher.line_with("held by ann");
    drop(holder);
}

/// An outage is tolerated for 15 s.
#[test]
fn watch_ends_if_the_store_stays_away() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let watcher = Started::new(sandbox.leasehold(&["watch", "job"]));
    watcher.line_with("free");
    redis.server.kill().unwrap();
    watcher.end().expect(69);
}

#[test]
fn break_ends_the_holders_and_reports_them_with_the_consequence() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        sandbox.end(&["break", "--yes", "job"]).expect(1).says("nothing to break");
        let holder = sandbox.start(&["--ttl", "5s", "--note", "ann\u{7}", "job"], "echo ready; sleep 1000");
        holder.line_with("ready");
        let waiter = sandbox.start(&["job"], "echo in; sleep 0.1");
        sandbox.wait_for_line("job", 1, 1);
        // Without a terminal it does not ask, and does nothing.
        sandbox.end(&["break", "job"]).expect(64).says("--yes");
        let broken = sandbox.end(&["break", "--yes", "job"]).expect(0);
        assert!(broken.out.contains("ann\\u{7}") && broken.out.contains("fence"), "{broken:?}");
        holder.end().expect(76);
        waiter.line_with("in");
        waiter.end().expect(0);
    }
}

#[test]
fn break_reports_to_programs_and_rejects_waiters_on_request() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let holder = sandbox.hold(&["--ttl", "5s", "--note", "ann", "job"]);
        let waiter = sandbox.start(&["--note", "ben", "--wait", "1m", "job"], "echo in");
        sandbox.wait_for_line("job", 1, 1);
        let broken = sandbox.end(&["break", "--yes", "--json", "--waiting", "job"]).expect(0);
        let broken: Value = serde_json::from_str(&broken.out).unwrap();
        let notes: Vec<_> =
            broken["broken"].as_array().unwrap().iter().map(|one| one["note"].as_str()).collect();
        assert_eq!(notes, [Some("ben"), Some("ann")]);
        holder.end().expect(76);
        drop(waiter);
        let nothing = sandbox.end(&["break", "--yes", "--json", "other"]).expect(1);
        assert_eq!(nothing.out, "{\"name\":\"other\",\"broken\":[],\"also_released\":[]}\n");
    }
}

/// A database in which no lock was ever taken may be the wrong one.
#[test]
fn commands_that_only_look_create_nothing_in_a_database() {
    let runtime = Runtime::new().unwrap();
    if let Some(server) = runtime.block_on(PostgresServer::start_or_skip()) {
        let tables = "SELECT count(*) FROM pg_class WHERE relname LIKE 'leasehold%'";
        let count = || runtime.block_on(server.sql(tables)).unwrap().trim().parse().unwrap();
        only_looks(&server.url(), &count);
        only_looks(&format!("{}?method=advisory", server.url()), &count);
    }
    if let Some(server) = runtime.block_on(MariaDbServer::start_or_skip()) {
        let tables = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'leasehold%'";
        only_looks(&server.url(), &|| runtime.block_on(server.sql(tables)).unwrap().trim().parse().unwrap());
    }
}

fn only_looks(url: &str, count: &dyn Fn() -> usize) {
    let (sandbox, before) = (Sandbox::on(url), count());
    let looks: [&[&str]; 6] =
        [&["show", "a"], &["ls"], &["watch", "a"], &["revoke", "a"], &["break", "--yes", "a"], &["doctor"]];
    // Connections that hold locks have nothing to sweep.
    let sweep: &[&[&str]] = if url.contains("method=") { &[] } else { &[&["sweep"]] };
    for look in looks.iter().chain(sweep) {
        let ended = sandbox.end(look).expect(78);
        assert!(ended.err.contains("a client that locks creates"), "{look:?}: {ended:?}");
        assert_eq!(count(), before, "{look:?} created something on {url}");
    }
    sandbox.run(&["a"], "true").expect(0);
    assert!(count() > before, "{url}");
    assert_eq!(sandbox.show("a")["state"], "free");
}
