//! `acquire` and `release`: a lock for a section of a script.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::pty::Pty;
use crate::support::{Redis, Sandbox, Started, eventually, is_alive, wait_until_gone};

/// Begins a section, or ends the script with the code of the failure.
pub(crate) const BEGIN: &str = "lock=$(leasehold acquire --ttl 5s job) || exit; eval \"$lock\"";

pub(crate) fn sandboxes() -> (Option<Redis>, Vec<Sandbox>) {
    let redis = Redis::start_or_skip();
    let on_redis = redis.as_ref().map(|redis| Sandbox::on(&redis.server.url()));
    (redis, [Some(Sandbox::new()), on_redis].into_iter().flatten().collect())
}

pub(crate) fn script(sandbox: &Sandbox, script: &str) -> Started {
    let mut command = sandbox.sh(script);
    command.stdin(std::process::Stdio::piped());
    Started::new(command)
}

/// The keepers and wardens that live, by the name of their program.
fn processes(names: &[&str]) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    ids.filter(|pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let name = arguments.split(|byte| *byte == 0).next().unwrap_or_default();
        names.iter().any(|known| known.as_bytes() == name) && is_alive(*pid)
    })
    .collect()
}

/// The keeper of this sandbox, which has the store in its environment.
pub(crate) fn keeper_of(sandbox: &Sandbox) -> i32 {
    let store = format!("LEASEHOLD_URL={}", sandbox.url);
    eventually(|| {
        let ours: Vec<_> = processes(&["lh-keeper"])
            .into_iter()
            .filter(|pid| {
                let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                variables.split(|byte| *byte == 0).any(|variable| variable == store.as_bytes())
            })
            .collect();
        match ours[..] {
            [keeper] => Ok(keeper),
            _ => Err(format!("{ours:?}")),
        }
    })
}

#[test]
fn section_is_alone_from_acquire_to_release() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let running = script(
            &sandbox,
            &format!(
                "{}; echo held by $LEASEHOLD_FENCE; read -r _; leasehold release; echo code $?; read -r _",
                BEGIN.replace("5s", "30s")
            ),
        );
        let line = running.line_with("held by");
        let shown = sandbox.show("job");
        assert_eq!(shown["fence"].as_str().unwrap(), line.rsplit(' ').next().unwrap());
        assert!(shown["holders"][0]["note"].as_str().unwrap().ends_with("cmd=sh"), "{shown}");
        sandbox.wait_for_renewal("job");
        sandbox.run(&["--no-wait", "job"], "true").expect(75);
        let keeper = keeper_of(&sandbox);
        let mut running = running;
        running.type_in("\n");
        running.line_with("code 0");
        sandbox.run(&["--no-wait", "job"], "true").expect(0);
        wait_until_gone(keeper);
        running.end().expect(1);
    }
}

#[test]
fn end_of_the_shell_in_any_way_releases_the_lock() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        for signal in [None, Some(Signal::KILL), Some(Signal::TERM)] {
            let running = script(&sandbox, &format!("{}; echo held; read -r _", BEGIN.replace("5s", "1h")));
            running.line_with("held");
            let waiter = sandbox.start(&["job"], "echo in");
            sandbox.wait_for_line("job", 1, 1);
            match signal {
                Some(signal) => running.signal(signal),
                None => drop(running.end()),
            }
            waiter.line_with("in");
            waiter.end().expect(0);
        }
    }
}

#[test]
fn failure_ends_the_script_also_with_eval_in_one_step() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    for begin in [
        "lock=$(leasehold acquire --no-wait job) || exit; eval \"$lock\"",
        "eval \"$(leasehold acquire --no-wait job)\" || exit",
        "set -e; eval \"$(leasehold acquire --no-wait job)\"",
    ] {
        let ended = script(&sandbox, &format!("{begin}; echo never")).end().expect(75).says("job is busy");
        assert_eq!(ended.out, "", "{ended:?}");
    }
    let begin = "eval \"$(leasehold acquire --no-wait --conflict-exit-code 9 job)\" || exit; echo never";
    script(&sandbox, begin).end().expect(9);
    holder.end().expect(0);
    for (args, code, text) in [
        ("--pid $(sleep 3 >/dev/null 2>&1 & echo $!) job", 64, "--pid $$"),
        ("--store redis://127.0.0.1:1 job", 69, "redis://127.0.0.1:1"),
        ("''", 64, "name is empty"),
        ("--ttl 1ms job", 64, "too short"),
    ] {
        script(&sandbox, &format!("leasehold acquire {args} || exit")).end().expect(code).says(text);
    }
}

/// A command line or a log level that is refused ends the script, too, before anything is known of a lock.
#[test]
fn refused_command_line_ends_the_script_that_evaluates_it() {
    let sandbox = Sandbox::new();
    for (before, after) in [
        ("", "acquire --wait 30 job"),
        ("", "acquire --no-such job"),
        ("", "acquire ''"),
        ("", "acquire"),
        ("", "acquire -- --json job"),
        ("", "-v acquire --no-such job"),
        ("", "--store file: acquire job"),
        ("LEASEHOLD_LOG=loud ", "acquire job"),
    ] {
        let begin = format!("eval \"$({before}leasehold {after})\" || exit; echo never");
        let ended = script(&sandbox, &begin).end().expect(64);
        assert_eq!(ended.out, "", "{before}{after}");
    }
    // Nothing else is evaluated by a shell.
    for args in [
        &["acquire", "--wait", "30", "--json", "job"][..],
        &["acquire", "--json", "--no-such", "job"],
        &["run", "--no-such", "acquire"],
    ] {
        assert_eq!(sandbox.end(args).expect(64).out, "", "{args:?}");
    }
    assert!(!sandbox.end(&["acquire", "--help"]).expect(0).out.contains("(exit"));
}

#[test]
fn loss_sends_the_shell_a_signal_and_release_says_76() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        for (flag, name) in [("", "TERM"), ("--on-lost usr1", "USR1")] {
            let begin = BEGIN.replace("acquire", &format!("acquire {flag}"));
            let trap =
                format!("trap 'echo got {name}' {name}; {begin}; echo held; until read -r _; do :; done");
            let mut running = script(&sandbox, &format!("{trap}; leasehold release; echo code $?"));
            running.line_with("held");
            sandbox.end(&["break", "--yes", "job"]).expect(0);
            running.complaint_with("job was lost");
            running.type_in("\n");
            running.line_with(&format!("got {name}"));
            running.line_with("code 76");
            running.end().says("job was lost before the release");
        }
        let begin = BEGIN.replace("acquire", "acquire --on-lost ignore");
        let mut running =
            script(&sandbox, &format!("{begin}; echo held; read -r _; leasehold release; echo code $?"));
        running.line_with("held");
        sandbox.end(&["break", "--yes", "job"]).expect(0);
        running.complaint_with("WITHOUT the lock");
        running.type_in("\n");
        running.line_with("code 76");
    }
}

#[test]
fn killed_keeper_is_a_loss_and_on_files_the_shell_ends_first() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let running =
            script(&sandbox, &format!("{BEGIN}; : >marks; echo held; while :; do echo mark; done >>marks"));
        running.line_with("held");
        let test = "before=$(wc -c <marks); sleep 0.05; after=$(wc -c <marks); [ $before = $after ]";
        let waiter = sandbox.start(&["--ttl", "5s", "job"], test);
        sandbox.wait_for_line("job", 1, 1);
        kill_process(Pid::from_raw(keeper_of(&sandbox)).unwrap(), Signal::KILL).unwrap();
        waiter.end().expect(0);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&running.end().status), Some(15));
        // With a trap, the script learns of it from the release.
        let mut running = script(
            &sandbox,
            &format!(
                "trap 'echo got' TERM; {BEGIN}; echo held; until read -r _; do :; done; leasehold release; echo code $?"
            ),
        );
        running.line_with("held");
        kill_process(Pid::from_raw(keeper_of(&sandbox)).unwrap(), Signal::KILL).unwrap();
        // The script ends its section only after that.
        running.line_with("got");
        running.type_in("\n");
        running.line_with("code 76");
        running.end().says("keeper is gone");
    }
}

#[test]
fn stopped_keeper_on_a_server_is_a_loss_before_its_lease_ends() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let running =
        script(&sandbox, &format!("trap 'echo got' TERM; {BEGIN}; echo held; until read -r _; do :; done"));
    running.line_with("held");
    let keeper = Pid::from_raw(keeper_of(&sandbox)).unwrap();
    kill_process(keeper, Signal::STOP).unwrap();
    running.line_with("got");
    kill_process(keeper, Signal::CONT).unwrap();
    drop(running);
}

#[test]
fn interrupted_wait_leaves_neither_a_keeper_nor_a_claim() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let waits = Started::new(sandbox.leasehold(&["acquire", "job"]));
        sandbox.wait_for_line("job", 1, 1);
        let keeper = keeper_of(&sandbox);
        waits.signal(signal);
        if signal != Signal::KILL {
            waits.end().expect_end_by(signal);
        }
        wait_until_gone(keeper);
        sandbox.wait_for_line("job", 1, 0);
    }
    // The shell is killed while it waits.
    let waits = script(&sandbox, &format!("echo waits; {BEGIN}"));
    sandbox.wait_for_line("job", 1, 1);
    waits.signal(Signal::KILL);
    sandbox.wait_for_line("job", 1, 0);
    // The keeper is killed while it waits.
    let waits = script(&sandbox, &format!("{BEGIN}; echo never"));
    sandbox.wait_for_line("job", 1, 1);
    kill_process(Pid::from_raw(keeper_of(&sandbox)).unwrap(), Signal::KILL).unwrap();
    let ended = waits.end().expect(69).says("the keeper was killed");
    assert_eq!(ended.out, "");
    holder.end().expect(0);
}

#[test]
fn typed_ctrl_c_ends_the_wait_and_the_script_and_not_a_section() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--note", "ann", "job"]);
    let mut shell = Pty::shell(&sandbox);
    shell.enter("sh -c 'lock=$(leasehold acquire job); echo ne''xt'; echo code $?");
    shell.see("waiting for job");
    shell.press("\x03");
    let rest = shell.prompt();
    assert!(!rest.contains("next"), "{rest:?}");
    sandbox.wait_for_line("job", 1, 0);
    holder.end().expect(0);
    // In a section, Ctrl-C is for the script, which may clean up under the lock.
    let trap = "trap 'leasehold run --no-wait job -- echo nested; leasehold release; echo code $?; exit' INT";
    std::fs::write(
        sandbox.path("script"),
        format!("{trap}\n{BEGIN}\necho held\nwhile :; do sleep 0.1; done\n"),
    )
    .unwrap();
    shell.enter("sh script");
    shell.see("held");
    shell.press("\x03");
    shell.see("nested");
    shell.see("code 0");
    shell.prompt();
    assert_eq!(sandbox.show("job")["state"], "free");
}

#[test]
fn output_that_nobody_reads_is_no_lock() {
    let sandbox = Sandbox::new();
    let ended =
        Started::new(sandbox.sh("{ leasehold acquire job; echo code $? >&2; } | true; sleep 0.1")).end();
    // Either it was printed before the reader ended, or the lock was released at once.
    assert!(ended.err.contains("code 74") || ended.err.contains("code 0"), "{ended:?}");
    sandbox.run(&["--wait", "30s", "job"], "true").expect(0);
    let ended = Started::new(
        sandbox
            .sh("leasehold acquire job >/dev/full; echo code $?; leasehold run --no-wait job -- echo free"),
    )
    .end();
    assert_eq!(ended.out, "code 74\nfree\n", "{ended:?}");
}

#[test]
fn captured_streams_do_not_wait_for_the_end_of_the_section() {
    let sandbox = Sandbox::new();
    let script =
        "lock=$(leasehold acquire job 2>&1) || exit; eval \"$lock\"; leasehold release; echo code $?";
    assert_eq!(Started::new(sandbox.sh(script)).end().expect(0).out, "code 0\n");
    let script = "lock=$(leasehold acquire job 2>errors) || exit; eval \"$lock\"; leasehold release; echo code $?; cat errors";
    assert_eq!(Started::new(sandbox.sh(script)).end().expect(0).out, "code 0\n");
}

#[test]
fn several_sections_are_released_by_their_names() {
    let sandbox = Sandbox::new();
    let script = "take() { lock=$(leasehold acquire \"$@\") || exit; eval \"$lock\"; }
        take 'a b'; take b --also c; leasehold ls
        leasehold release; echo none $?; leasehold release x; echo other $?
        leasehold release 'a b'; echo one $?; leasehold ls
        leasehold release b; echo two $?; leasehold ls
        take 'a b'; leasehold release; echo again $?; leasehold release; echo twice $?";
    let ended = Started::new(sandbox.sh(script)).end().expect(0).says("name the one to release: a b, b");
    let expected = "a b  1 held\nb    1 held\nc    1 held\nnone 64\nother 64\none 0\nb  1 held\nc  1 held\ntwo 0\n\
                    again 0\ntwice 76\n";
    assert_eq!(ended.out, expected, "{ended:?}");
    let none = sandbox.end(&["release"]).expect(64);
    assert!(none.err.contains("LEASEHOLD_KEEPER is not set"), "{none:?}");
}

#[test]
fn nested_section_and_run_are_under_the_lock() {
    let sandbox = Sandbox::new();
    let script = format!(
        "{BEGIN}; echo $LEASEHOLD_FENCE; leasehold run --no-wait job -- sh -c 'echo $LEASEHOLD_FENCE'; \
         sh -c '{}; leasehold release; echo code $?'; leasehold run --no-wait job -- echo still; leasehold release; echo code $?",
        BEGIN.replace("5s", "6s")
    );
    let ended = Started::new(sandbox.sh(&script)).end().expect(0);
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines[0], lines[1], "{ended:?}");
    assert_eq!(lines[2..], ["code 0", "still", "code 0"], "{ended:?}");
    assert_eq!(sandbox.show("job")["state"], "free");
}

#[test]
fn password_of_the_store_is_not_printed() {
    let Some(redis) = Redis::build_or_skip(leasehold_testkit::RedisServer::builder().password("hunter2"))
    else {
        return;
    };
    let sandbox = Sandbox::on(&redis.server.url());
    let ended = Started::new(sandbox.sh("leasehold acquire job; leasehold show -q job; echo code $?"))
        .end()
        .expect(0);
    assert!(!ended.out.contains("hunter2") && !ended.out.contains("LEASEHOLD_URL"), "{ended:?}");
    assert!(ended.out.ends_with("code 0\n"), "{ended:?}");
}

#[test]
fn json_has_what_another_language_needs() {
    let sandbox = Sandbox::new();
    let script = "leasehold acquire --json --also b a; leasehold show -q a; echo $?";
    let ended = Started::new(sandbox.sh(script)).end().expect(0);
    let (json, code) = ended.out.split_once('\n').unwrap();
    let json: Value = serde_json::from_str(json).unwrap();
    assert_eq!((&json["name"], &json["locks"][1]["name"]), (&"a".into(), &"b".into()));
    assert_eq!(json["locks"][0]["fence"].as_str().unwrap().len(), 20);
    assert!(json["keeper"].as_str().unwrap().ends_with("=a"));
    assert_eq!(code, "0\n");
    assert_eq!(json["variables"]["LEASEHOLD_KEEPER"], json["keeper"]);
    assert_eq!(json["variables"]["LEASEHOLD_NAME"], "a");
    assert_eq!(json["variables"]["LEASEHOLD_FENCE"], json["locks"][0]["fence"]);
    // With all of them, a nested run does not wait for its own section.
    let nested = "leasehold run --no-wait job -- echo nested; leasehold release; echo code $?";
    let begin = "leasehold acquire --json job; read -r all; eval \"$all\"";
    let mut running = self::script(&sandbox, &format!("{begin}; {nested}"));
    let json: Value = serde_json::from_str(&running.line_with("variables")).unwrap();
    let set = json["variables"].as_object().unwrap().iter().map(|(name, value)| match value.as_str() {
        Some(value) => format!("export {name}='{value}'; "),
        None => format!("unset {name}; "),
    });
    running.type_in(&format!("{}\n", set.collect::<String>()));
    running.line_with("nested");
    running.line_with("code 0");
}

#[test]
fn revocation_sends_the_shell_the_chosen_signal() {
    let sandbox = Sandbox::new();
    let begin = BEGIN.replace("acquire", "acquire --on-revoke usr1");
    let mut running = script(
        &sandbox,
        &format!(
            "trap 'echo asked' USR1; {begin}; echo held; until read -r _; do :; done; leasehold release; echo code $?"
        ),
    );
    running.line_with("held");
    sandbox.end(&["revoke", "job"]).expect(0);
    running.complaint_with("job is revoked");
    running.type_in("\n");
    running.line_with("asked");
    running.line_with("code 0");
}

#[test]
fn signals_to_the_keeper_do_not_end_the_section() {
    let sandbox = Sandbox::new();
    let mut running =
        script(&sandbox, &format!("{BEGIN}; echo held; read -r _; leasehold release; echo code $?"));
    running.line_with("held");
    let keeper = Pid::from_raw(keeper_of(&sandbox)).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
        kill_process(keeper, signal).unwrap();
    }
    sandbox.run(&["--no-wait", "job"], "true").expect(75);
    running.type_in("\n");
    running.line_with("code 0");
}

#[test]
fn keeper_keeps_nothing_open_that_the_script_has_opened() {
    let sandbox = Sandbox::new();
    // The end of the pipe is seen although the section continues.
    let script = format!(
        "mkfifo pipe; cat pipe & reader=$!; exec 7>pipe 8>lock; flock 8; {BEGIN}; exec 7>&- 8>&-; \
                          wait $reader; echo closed; flock -n lock true && echo unlocked; leasehold release; echo code $?"
    );
    let ended = Started::new(sandbox.sh(&script)).end().expect(0);
    assert_eq!(ended.out, "closed\nunlocked\ncode 0\n", "{ended:?}");
}

#[test]
fn subshells_of_the_script_are_not_taken_for_it() {
    let sandbox = Sandbox::new();
    let section = "eval \"$lock\"; sleep 0.3; leasehold run --no-wait job -- true; echo nested $?; \
                   LEASEHOLD_OWNER= leasehold run --no-wait job -- true; echo other $?; leasehold release; echo code $?";
    for shell in ["sh", "bash"] {
        for begin in [
            "trap 'echo trapped' TERM EXIT; lock=$(leasehold acquire job)",
            "lock=$(leasehold acquire job | cat)",
            "lock=$(true; leasehold acquire job; true)",
            "take() { lock=$(leasehold acquire --pid $$ job) || exit; }; trap : USR1; take",
        ] {
            let file = sandbox.path("script");
            std::fs::write(&file, format!("{begin}\n{section}\n")).unwrap();
            let ended = Started::new(sandbox.sh(&format!("exec {shell} script"))).end();
            let out = ended.out.replace("trapped\n", "");
            assert_eq!(out, "nested 0\nother 75\ncode 0\n", "{shell} {begin}: {ended:?}");
        }
    }
}

#[test]
fn stopped_keeper_on_files_is_reported_by_the_release() {
    let sandbox = Sandbox::new();
    let mut running = script(
        &sandbox,
        &format!("{BEGIN}; echo held; read -r _; leasehold release; echo code $?; read -r _"),
    );
    running.line_with("held");
    let keeper = Pid::from_raw(keeper_of(&sandbox)).unwrap();
    kill_process(keeper, Signal::STOP).unwrap();
    running.type_in("\n");
    running.line_with("code 69");
    kill_process(keeper, Signal::CONT).unwrap();
    // The request has arrived, and is answered to nobody.
    sandbox.run(&["--wait", "30s", "job"], "true").expect(0);
    running.end().says("does not answer");
}
