//! `elect`: candidates lead one after the other, stop when they lose, and come back.

use rustix::process::Signal;

use crate::acquire::{BEGIN, script};
use crate::support::{Redis, Sandbox, Started, eventually};

fn elect(sandbox: &Sandbox, args: &[&str]) -> Started {
    Started::new(sandbox.leasehold(&[&["elect"], args].concat()))
}

#[test]
fn one_candidate_leads_and_the_next_takes_over() {
    let sandbox = Sandbox::new();
    let first =
        elect(&sandbox, &["boss", "--value", "ann", "--", "sh", "-c", "echo ann leads; exec sleep 60"]);
    first.line_with("ann leads");
    assert_eq!(sandbox.show("boss")["holders"][0]["note"], "ann");
    let second = elect(&sandbox, &["boss", "--value", "ben", "--", "sh", "-c", "echo ben leads; exit 3"]);
    sandbox.wait_for_line("boss", 1, 1);
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), 143);
    second.line_with("ben leads");
    assert_eq!(second.end().code(), 3, "it ends with its command");
}

#[test]
fn leader_that_loses_stops_and_campaigns_again() {
    let sandbox = Sandbox::new();
    let log = sandbox.path("log");
    let script = format!(
        "trap 'echo end >> {0}; exit 0' TERM; echo begin >> {0}; while :; do sleep 0.05; done",
        log.display()
    );
    let hook = format!("echo lost >> {}", log.display());
    let leader = elect(&sandbox, &["boss", "--on-demoted", &hook, "--", "sh", "-c", &script]);
    let logged = |count: usize| {
        eventually(|| {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            (text.lines().count() >= count).then_some(text.clone()).ok_or(text)
        })
    };
    logged(1);
    sandbox.end(&["break", "--yes", "boss"]).expect(0);
    assert_eq!(logged(4), "begin\nend\nlost\nbegin\n");
    leader.signal(Signal::INT);
    leader.end().expect_end_by(Signal::INT);
    assert_eq!(
        logged(5).lines().filter(|line| *line == "lost").count(),
        2,
        "a leader that resigns no longer leads either"
    );
    assert_eq!(sandbox.show("boss")["state"], "free");
}

/// The leader has no claim of its own: it leads by that of a section, or of an outer run.
#[test]
fn nested_leader_without_a_command_that_loses_campaigns_again() {
    let elect = "leasehold elect --on-elected 'echo leads' job";
    let in_section = format!("{}; exec {elect}", BEGIN.replace("acquire", "acquire --on-lost ignore"));
    let in_run = format!("exec leasehold run --on-lost ignore job -- {elect}");
    for around in [in_section, in_run] {
        let sandbox = Sandbox::new();
        let leader = script(&sandbox, &around);
        leader.line_with("leads");
        sandbox.end(&["break", "--yes", "job"]).expect(0);
        leader.complaint_with("campaigning for job again");
        leader.line_with("leads");
        leader.signal(Signal::TERM);
        let ended = leader.end();
        assert_eq!(ended.code(), 143, "{ended:?}");
    }
}

#[test]
fn hooks_run_on_election_and_on_demotion() {
    let Some(redis) = Redis::start_or_skip() else { return };
    for sandbox in [Sandbox::new(), Sandbox::on(&redis.server.url())] {
        let leader = elect(
            &sandbox,
            &["boss", "--on-elected", "echo up $LEASEHOLD_FENCE", "--on-demoted", "echo down"],
        );
        let up = leader.line_with("up ");
        assert!(up.trim().len() > "up ".len(), "the hook sees the fence: {up}");
        sandbox.wait_for_line("boss", 1, 0);
        let waiting = elect(&sandbox, &["boss", "--on-elected", "echo up", "--on-demoted", "echo down"]);
        sandbox.wait_for_line("boss", 1, 1);
        waiting.signal(Signal::TERM);
        let ended = waiting.end();
        assert_eq!(
            (ended.code(), ended.out.as_str()),
            (143, ""),
            "a candidate that never led has nothing to undo"
        );
        leader.signal(Signal::TERM);
        let ended = leader.end();
        assert_eq!(ended.code(), 143);
        assert!(ended.out.contains("down"), "{ended:?}");
        assert_eq!(sandbox.show("boss")["state"], "free");
    }
}

#[test]
fn signal_during_the_hook_of_an_election_ends_the_candidacy_after_it() {
    let sandbox = Sandbox::new();
    // The signal is passed on to it, and it succeeds all the same.
    let script = "trap 'exit 0' TERM; kill -TERM $PPID; while :; do sleep 0.1; done";
    elect(&sandbox, &["boss", "--on-elected", script]).end().expect(143);
    assert_eq!(sandbox.show("boss")["state"], "free");
}

#[test]
fn a_hook_that_fails_ends_the_candidacy_with_its_code() {
    let sandbox = Sandbox::new();
    let ended =
        elect(&sandbox, &["boss", "--on-elected", "exit 7", "--on-demoted", "echo down; exit 1"]).end();
    assert_eq!(ended.code(), 7);
    assert!(ended.out.contains("down") && ended.err.contains("--on-demoted failed"), "{ended:?}");
}

#[test]
fn other_signals_mean_nothing_while_no_command_runs() {
    let sandbox = Sandbox::new();
    let leader = elect(&sandbox, &["boss", "--on-elected", "trap '' USR1 USR2; echo leads"]);
    leader.line_with("leads");
    let candidate = elect(&sandbox, &["boss", "--", "sh", "-c", "echo follows; exit 3"]);
    sandbox.wait_for_line("boss", 1, 1);
    for signal in [Signal::USR1, Signal::USR2] {
        leader.signal(signal);
        candidate.signal(signal);
    }
    // A signal that ended one of them would have arrived by now.
    sandbox.wait_for_line("boss", 1, 1);
    leader.signal(Signal::TERM);
    assert_eq!(leader.end().code(), 143);
    candidate.line_with("follows");
    assert_eq!(candidate.end().code(), 3);
}

#[test]
fn contradictory_options_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.end(&["elect", "boss"]).expect(64);
    sandbox.end(&["elect", "boss", "--on-elected", "true", "--", "true"]).expect(64);
    sandbox.end(&["elect", "boss", "--", "no-such-command-here"]).expect(127);
    sandbox.end(&["elect", "--store", "redis://127.0.0.1:1", "boss", "--", "true"]).expect(69);
}

#[test]
fn leader_that_survived_a_hup_campaigns_again_after_a_loss() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo reloaded' HUP; trap 'exit 0' TERM; echo begin; while :; do sleep 0.05; done";
    let leader = elect(&sandbox, &["boss", "--grace", "100ms", "--", "sh", "-c", script]);
    leader.line_with("begin");
    leader.signal(Signal::HUP);
    leader.line_with("reloaded");
    // The command continues for longer than the grace period, so the signal was not a request to end.
    std::thread::sleep(std::time::Duration::from_millis(300));
    sandbox.end(&["break", "--yes", "boss"]).expect(0);
    leader.complaint_with("campaigning for boss again");
    leader.line_with("begin");
    leader.signal(Signal::TERM);
    leader.end();
}

/// No command could have used the signal for something else.
#[test]
fn hup_during_a_hook_that_is_killed_ends_the_candidacy() {
    let sandbox = Sandbox::new();
    let script = "trap 'exit 0' TERM; echo begin; while :; do sleep 0.05; done";
    let hook = "trap '' HUP; echo down; while :; do sleep 0.05; done";
    let args = ["boss", "--grace", "100ms", "--on-demoted", hook, "--", "sh", "-c", script];
    let leader = elect(&sandbox, &args);
    leader.line_with("begin");
    sandbox.end(&["break", "--yes", "boss"]).expect(0);
    leader.line_with("down");
    leader.signal(Signal::HUP);
    leader.complaint_with("--on-demoted failed: signal 9 ended it");
    leader.end().expect(129);
}

/// The time of the hook does not make the signal older.
#[test]
fn hup_before_a_long_hook_ends_the_candidacy() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; trap 'exit 0' HUP; echo begin; while :; do sleep 0.05; done";
    let args = ["boss", "--grace", "3s", "--on-demoted", "sleep 4", "--", "sh", "-c", script];
    let leader = elect(&sandbox, &args);
    leader.line_with("begin");
    sandbox.end(&["break", "--yes", "boss"]).expect(0);
    leader.complaint_with("boss was lost");
    leader.signal(Signal::HUP);
    leader.end().expect(129);
}

#[test]
fn candidate_that_waits_survives_a_refused_login() {
    let builder = leasehold_testkit::RedisServer::builder().password("hunter2");
    let Some(redis) = Redis::build_or_skip(builder) else { return };
    let sandbox = Sandbox::new();
    let (file, addr) = (sandbox.path("password"), redis.server.addr());
    std::fs::write(&file, "hunter2").unwrap();
    let url = format!("redis://{addr}?password-file={}", file.display());
    let sandbox = Sandbox::on(&url);
    // Its lease outlasts a machine that stands still, and ends some time after it is killed.
    let holder = sandbox.hold(&["--ttl", "20s", "boss"]);
    let candidate = elect(&sandbox, &["--ttl", "5s", "boss", "--", "sh", "-c", "echo leads; exit 3"]);
    sandbox.wait_for_line("boss", 1, 1);
    // An error right after the start would be one of the configuration.
    std::thread::sleep(std::time::Duration::from_secs(3));
    for command in
        [&["ACL", "SETUSER", "default", "resetpass", ">next"][..], &["CLIENT", "KILL", "USER", "default"]]
    {
        redis.block_on(redis.server.command(command)).unwrap();
    }
    candidate.complaint_with("trying again in 1s");
    std::fs::write(&file, "next").unwrap();
    drop(holder);
    candidate.line_with("leads");
    candidate.end().expect(3);
}

#[test]
fn a_login_that_is_refused_at_the_start_ends_the_candidacy() {
    let builder = leasehold_testkit::RedisServer::builder().password("hunter2");
    let Some(redis) = Redis::build_or_skip(builder) else { return };
    let sandbox = Sandbox::on(&format!("redis://default:other@{}", redis.server.addr()));
    elect(&sandbox, &["boss", "--", "true"]).end().expect(78);
}

#[test]
fn a_hook_has_the_environment_of_a_command() {
    const PASSWORD: &str = "hunter2-and-more";
    let Some(redis) = Redis::build_or_skip(leasehold_testkit::RedisServer::builder().password(PASSWORD))
    else {
        return;
    };
    let (url, addr) = (redis.server.url(), redis.server.addr());
    let ended = elect(&Sandbox::on(&url), &["boss", "--on-demoted", "env", "--", "true"]).end();
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert!(ended.out.contains(&format!("LEASEHOLD_URL=redis://default@{addr}")), "{ended:?}");
    assert!(ended.out.contains("LEASEHOLD_NAME=boss") && !ended.out.contains("hunter2"), "{}", ended.out);
    // If the flag names the store, the hook gets the same one.
    let other = Sandbox::new();
    let ended =
        elect(&Sandbox::new(), &["--store", &other.url, "boss", "--on-demoted", "env", "--", "true"]).end();
    assert!(ended.out.contains(&format!("LEASEHOLD_URL={}\n", other.url)), "{ended:?}");
}

#[test]
fn a_hook_that_hangs_ends_with_a_signal_and_its_grace() {
    let sandbox = Sandbox::new();
    let hook = "trap '' TERM; echo down; while :; do sleep 0.05; done";
    let candidate = elect(&sandbox, &["boss", "--grace", "100ms", "--on-demoted", hook, "--", "true"]);
    candidate.line_with("down");
    candidate.signal(Signal::TERM);
    candidate.complaint_with("--on-demoted failed: signal 9 ended it");
    candidate.end();
}

#[test]
fn a_hook_that_hangs_is_ended_after_the_time_of_a_lease() {
    let sandbox = Sandbox::new();
    let hook = "echo down $$; exec sleep 1000";
    let candidate =
        elect(&sandbox, &["boss", "--ttl", "3s", "--on-demoted", hook, "--", "sh", "-c", "exit 3"]);
    let pid = crate::support::number(&candidate.line_with("down"));
    candidate.complaint_with("took longer than 3s");
    crate::support::wait_until_gone(pid);
    assert_eq!(candidate.end().code(), 3);
}
