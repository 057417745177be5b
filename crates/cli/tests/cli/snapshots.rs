//! Everything that the command prints for people and programs, as a whole: a change of a text shows up in the
//! difference of a file.
//!
//! Ground rules: what differs between machines, stores or runs is replaced by its name in brackets. After an
//! intended change, `INSTA_UPDATE=always cargo test -p leasehold-cli --test cli snapshots` writes the files.

use std::fmt::Write;

use leasehold_testkit::PostgresServer;

use crate::support::{Ended, Redis, Sandbox};

/// Parts that are never the same twice, and their names.
const MASKS: [(&str, &str); 19] = [
    (r"(?:/private)?/tmp/\.tmp\w+", "[DIR]"),
    (r"127\.0\.0\.1:\d{4,5}", "127.0.0.1:[PORT]"),
    (r"\b[0-9a-f]{32}\b", "[TAG]"),
    (r"\b\d{20}\b", "[FENCE]"),
    (r"\be\d{20}\b", "e[EPOCH]"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "[TIME]"),
    (r#""(since_unix_ms|remaining_ms)":\d+"#, r#""$1":[NUMBER]"#),
    (r"\([^()]* ago\) *", "([AGE] ago)  "),
    // A column is as wide as its widest time: `1m` or `59s`.
    (r"\d+[ms]( \d+s)? left {2,}", "[TIME] left  "),
    (r"\d+s left", "[TIME] left"),
    (r"host=\S+ user=\S+ pid=\d+", "host=[HOST] user=[USER] pid=[PID]"),
    (r"took \S+ to \S+,", "took [TIME] to [TIME],"),
    (r#"Redis \d+\.\d+\.\d+[^\n"]*"#, "Redis [VERSION]"),
    (r"PostgreSQL \d[^,\n]*,", "PostgreSQL [VERSION],"),
    (r"has \d+ rows and \d+ dead ones in \d+ KiB", "has [COUNT] rows and [COUNT] dead ones in [SIZE]"),
    (r"leasehold \d+\.\d+\.\d+", "leasehold [VERSION]"),
    (r"for another \S+", "for another [TIME]"),
    (r"uid \d+|user \d+", "user [NUMBER]"),
    (r"[ \t]+\n", "\n"),
];

fn check(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    for (mask, named) in MASKS {
        settings.add_filter(mask, named);
    }
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// The output of a command, and its exit status.
fn printed(args: &[&str], ended: &Ended) -> String {
    let mut text = format!("$ leasehold {}\n{}", args.join(" "), ended.out);
    for line in ended.err.lines() {
        writeln!(text, "[stderr] {line}").unwrap();
    }
    writeln!(text, "[exit code {}]\n", ended.code()).unwrap();
    text
}

fn all(sandbox: &Sandbox, commands: &[&[&str]]) -> String {
    commands.iter().map(|args| printed(args, &sandbox.end(args))).collect()
}

#[test]
fn snapshots_of_help() {
    let sandbox = Sandbox::new();
    let commands = [
        "run", "show", "ls", "top", "watch", "revoke", "break", "elect", "doctor", "sweep", "schema",
        "redlock", "torture",
    ];
    check("help", &all(&sandbox, &[&["--help"]]));
    for command in commands {
        check(&format!("help-{command}"), &all(&sandbox, &[&[command, "--help"]]));
    }
}

#[test]
fn snapshots_of_usage_errors() {
    let sandbox = Sandbox::new();
    let mistakes: &[&[&str]] = &[
        &[],
        &["lock", "nightly"],
        &["run", "nightly"],
        &["run", "nightly", "true"],
        &["run", "", "--", "true"],
        &["run", "a\nb", "--", "true"],
        &["run", "--wait", "30", "nightly", "--", "true"],
        &["run", "--ttl", "1ms", "nightly", "--", "true"],
        &["run", "--wait", "1s", "--no-wait", "nightly", "--", "true"],
        &["run", "--shared", "--permits", "2", "nightly", "--", "true"],
        &["run", "--permits", "0", "nightly", "--", "true"],
        &["run", "--on-lost", "weep", "nightly", "--", "true"],
        &["run", "--store", "127.0.0.1:6379", "nightly", "--", "true"],
        &["run", "--store", "reddis://h", "nightly", "--", "true"],
        &["run", "--store", "redis://", "nightly", "--", "true"],
        &["run", "--store", "redis://h?tiemout=1s", "nightly", "--", "true"],
        &["run", "--store", "mem:", "nightly", "--", "true"],
        &["run", "--store", "", "nightly", "--", "true"],
        &["run", "--store", "file:locks", "nightly", "--", "true"],
        &["run", "nightly", "--", "no-such-command"],
        &["elect", "nightly"],
        &["show"],
        &["ls", "--deadlocks", "a/"],
        &["break", "nightly"],
        &["break", "--json", "nightly"],
        &["completions", "cmd.exe"],
    ];
    check("usage-errors", &all(&sandbox, mistakes));
}

#[test]
fn snapshots_of_refusals_and_failures() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("file");
    std::fs::write(&file, "no database").unwrap();
    let (below, database) =
        (format!("file://{}/below", file.display()), format!("sqlite:{}.db", file.display()));
    let holder = sandbox.hold(&["--note", "ann", "nightly"]);
    let failures: &[&[&str]] = &[
        &["run", "--no-wait", "nightly", "--", "true"],
        &["run", "--wait", "10ms", "nightly", "--", "true"],
        &["run", "--store", &below, "nightly", "--", "true"],
        &["show", "--store", &database, "nightly"],
        &["schema"],
        &["sweep"],
        &["redlock", "rearm", "--yes"],
        &["show", "--store", "redis://127.0.0.1:1", "nightly"],
        &["show", "--store", "memcached://127.0.0.1:1", "nightly"],
        &["show", "--store", "postgres://me@127.0.0.1:1/db", "nightly"],
        &["show", "--store", "mysql://me@127.0.0.1:1/db", "nightly"],
    ];
    check("failures", &all(&sandbox, failures));
    holder.end().expect(0);
    if let Some(redis) = Redis::start_or_skip() {
        let wrong = redis.server.url().replace("redis://", "redis://:wrong@");
        let tls = redis.server.url().replace("redis://", "rediss://");
        let failures: &[&[&str]] = &[
            &["show", "--store", &wrong, "nightly"],
            &["show", "--store", &tls, "nightly"],
            &["run", "--store", &redis.server.url(), "--ttl", "48h", "nightly", "--", "true"],
        ];
        check("failures-redis", &all(&sandbox, failures));
    }
}

#[test]
fn snapshots_of_what_is_held() {
    for (store, redis) in [("file", None), ("redis", Redis::start_or_skip())] {
        let sandbox = match (store, &redis) {
            ("redis", None) => continue,
            (_, Some(redis)) => Sandbox::on(&redis.server.url()),
            _ => Sandbox::new(),
        };
        let looks: &[&[&str]] =
            &[&["show", "nightly"], &["show", "--json", "nightly"], &["ls"], &["ls", "--json"]];
        let mut text = all(&sandbox, looks);
        let holder = sandbox.hold(&["--note", "ann", "--permits", "2", "nightly"]);
        let waiter = sandbox.start(&["--note", "ben", "nightly"], "true");
        sandbox.wait_for_line("nightly", 1, 1);
        text += &all(&sandbox, looks);
        text += &all(&sandbox, &[&["revoke", "nightly"], &["revoke", "--json", "nightly"]]);
        text += &all(
            &sandbox,
            &[&["break", "--yes", "--waiting", "--json", "nightly"], &["break", "--yes", "x"]],
        );
        check(&format!("held-{store}"), &text);
        drop((holder, waiter));
    }
}

/// A round trip that takes less than a tenth of the ttl is good, also on a busy disk.
const DOCTOR: [&str; 3] = ["doctor", "--ttl", "10m"];

#[test]
fn snapshots_of_doctor() {
    let commands: &[&[&str]] =
        &[&DOCTOR, &[&DOCTOR[..], &["--json"]].concat(), &["doctor", "--ttl", "2days"]];
    let Some(redis) = Redis::start_or_skip() else { return };
    check("doctor-redis", &all(&Sandbox::on(&redis.server.url()), commands));
}

#[test]
fn snapshots_of_doctor_on_postgres() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let Some(server) = runtime.block_on(PostgresServer::start_or_skip()) else { return };
    let advisory = format!("{}?method=advisory", server.url());
    for (name, url) in [("doctor-postgres", server.url()), ("doctor-postgres-advisory", advisory)] {
        let sandbox = Sandbox::on(&url);
        let tables = sandbox.end(&["schema"]).expect(0).out;
        runtime.block_on(server.sql(&tables)).unwrap();
        check(name, &all(&sandbox, &[&DOCTOR]));
    }
}
