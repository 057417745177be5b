//! `--conflict-exit-code`, `show --quiet`, `--lock-delay`.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Redis, Sandbox};

#[test]
fn conflict_has_the_code_that_was_chosen_for_it() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    for (args, code) in [
        (&["--no-wait", "--conflict-exit-code", "0"][..], 0),
        (&["--no-wait", "--conflict-exit-code", "99"], 99),
        (&["--wait", "50ms", "--conflict-exit-code", "3"], 3),
        (&["--no-wait", "--conflict-exit-code", "75"], 75),
    ] {
        let ended = sandbox.run(&[args, &["job"]].concat(), "echo never").expect(code).says("held");
        assert_eq!(ended.out, "");
    }
    sandbox.run(&["--conflict-exit-code", "256", "job"], "true").expect(64).says("256");
    holder.end().expect(0);
    // Nothing else has that code.
    sandbox.run(&["--conflict-exit-code", "99", "job"], "exit 75").expect(75);
    sandbox.run(&["--conflict-exit-code", "0", "--max-hold", "100ms", "job"], "exec sleep 1000").expect(76);
    let away = Sandbox::on("redis://127.0.0.1:1");
    away.run(&["--conflict-exit-code", "0", "--no-wait", "job"], "true").expect(69);
}

#[test]
fn quiet_look_says_held_or_free_by_its_code_alone() {
    let sandbox = Sandbox::new();
    let look = |code: i32| {
        for flag in ["--quiet", "-q"] {
            let ended = sandbox.end(&["show", flag, "job"]).expect(code);
            assert_eq!((ended.out, ended.err), (String::new(), String::new()));
        }
    };
    look(1);
    let holder = sandbox.hold(&["--shared", "job"]);
    look(0);
    holder.end().expect(0);
    look(1);
    sandbox.end(&["show", "--quiet", "--json", "job"]).expect(64).says("cannot be used with");
    let away = Sandbox::on("redis://127.0.0.1:1");
    away.end(&["show", "--quiet", "job"]).expect(69).says("redis://127.0.0.1:1");
}

#[test]
fn lock_delay_is_for_a_lost_lock_and_not_for_a_released_one() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let args = ["--ttl", "5s", "--lock-delay", "6s", "job"];
    let holder = sandbox.start(&args, "echo ready; exec sleep 1000");
    holder.line_with("ready");
    let waiter = sandbox.start(&["--ttl", "5s", "job"], "echo in");
    sandbox.wait_for_line("job", 1, 1);
    let began = Instant::now();
    holder.signal(Signal::KILL);
    waiter.line_with("in");
    // The lease was not over, so none of the delay was.
    assert!(began.elapsed() >= Duration::from_secs(6), "{:?}", began.elapsed());
    waiter.end().expect(0);
    let began = Instant::now();
    sandbox.run(&["--ttl", "5s", "--lock-delay", "1h", "job"], "true").expect(0);
    sandbox.run(&["job"], "true").expect(0);
    assert!(began.elapsed() < Duration::from_secs(1800), "a release frees it");
    let files = Sandbox::new();
    files.run(&["--lock-delay", "1s", "job"], "echo never").expect(78);
}
