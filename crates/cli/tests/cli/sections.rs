//! Runs inside the section of a script, and the script's copies of itself.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::acquire::{BEGIN, keeper_of, sandboxes, script};
use crate::support::{
    BlockingLateness, Redis, Sandbox, Started, eventually, is_alive, number, wait_until_gone,
};

/// A nested run whose command reports TERM, and ends because of it.
const NESTED: &str = "leasehold run job -- sh -c \
    'trap \"echo terminated; exit 0\" TERM; echo inside $$; while :; do sleep 0.05; done'";

#[test]
fn loss_of_the_section_ends_a_nested_run() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        // The script itself survives the loss.
        let running = script(&sandbox, &format!("trap : TERM; {BEGIN}; {NESTED}; echo code $?"));
        running.line_with("inside");
        sandbox.end(&["break", "--yes", "job"]).expect(0);
        running.line_with("terminated");
        running.line_with("code 76");
        running.complaint_with("job was lost");
        // It is not the shell's signal that ends it.
        let begin = BEGIN.replace("acquire", "acquire --on-lost ignore");
        let stubborn = NESTED.replace("echo terminated; exit 0", "");
        let nested = stubborn.replace("run job", "run --grace 200ms job");
        let running = script(&sandbox, &format!("{begin}; {nested}; echo code $?"));
        let inside = number(&running.line_with("inside"));
        sandbox.end(&["break", "--yes", "job"]).expect(0);
        running.line_with("code 76");
        assert!(!is_alive(inside), "killed after its grace period");
    }
}

#[test]
fn nested_run_may_ignore_the_loss_or_be_killed_at_once() {
    let sandbox = Sandbox::new();
    let begin = BEGIN.replace("acquire", "acquire --on-lost ignore");
    let kept = "leasehold run --on-lost ignore job -- sh -c 'echo inside; read -r _; exit 4'";
    let mut running = script(&sandbox, &format!("{begin}; {kept}; echo code $?"));
    running.line_with("inside");
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    running.complaint_with("the command continues WITHOUT the lock");
    running.type_in("\n");
    running.line_with("code 4");
    let killed = NESTED.replace("run job", "run --on-lost kill job");
    let running = script(&sandbox, &format!("{begin}; {killed}; echo code $?"));
    running.line_with("inside");
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    running.line_with("code 76");
    assert!(!running.end().out.contains("terminated"));
}

#[test]
fn nested_run_of_each_of_many_names_is_let_into_the_section() {
    let sandbox = Sandbox::new();
    let all: String = (0..71).map(|number| format!(" --also n{number:02}")).collect();
    let running = script(
        &sandbox,
        &format!(
            "lock=$(leasehold acquire{all} n00) || exit; eval \"$lock\"; \
             for name in n00 n01 n70; do leasehold run --no-wait $name -- echo in $name; done"
        ),
    );
    assert_eq!(running.end().expect(0).out, "in n00\nin n01\nin n70\n");
}

#[test]
fn inner_section_and_its_nested_run_follow_the_outer_one() {
    let sandbox = Sandbox::new();
    let inner = format!(
        "trap 'echo inner got' TERM; {BEGIN}; {NESTED}; echo inner code $?; leasehold release; echo release $?"
    );
    std::fs::write(sandbox.path("inner"), inner).unwrap();
    let begin = BEGIN.replace("acquire", "acquire --on-lost ignore");
    let running = script(&sandbox, &format!("{begin}; sh inner"));
    running.line_with("inside");
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    running.line_with("terminated");
    running.line_with("release 76");
    // The signal may come before the end of the nested run, or after it.
    let out = running.end().out;
    assert!(out.contains("inner got") && out.contains("inner code 76"), "{out}");
}

#[test]
fn killed_keeper_ends_a_nested_run_before_the_lock_is_free() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        // The shell ends at once, and the command of the nested run takes its time.
        let inner = "trap \"\" TERM; : >marks; echo inside; while :; do echo mark; done >>marks";
        let running = script(
            &sandbox,
            &format!("{BEGIN}; leasehold run --grace 200ms job -- sh -c '{inner}' & wait; echo over"),
        );
        running.line_with("inside");
        let test = "before=$(wc -c <marks); sleep 0.05; after=$(wc -c <marks); [ $before = $after ]";
        let waiter = sandbox.start(&["--ttl", "5s", "job"], test);
        sandbox.wait_for_line("job", 1, 1);
        kill_process(Pid::from_raw(keeper_of(&sandbox)).unwrap(), Signal::KILL).unwrap();
        waiter.end().expect(0);
        running.complaint_with("the keeper of its section is gone");
    }
}

#[test]
fn stopped_keeper_ends_a_nested_run_before_the_lease_is_over() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let running = script(&sandbox, &format!("trap : TERM; {BEGIN}; {NESTED}; echo code $?"));
    running.line_with("inside");
    let keeper = Pid::from_raw(keeper_of(&sandbox)).unwrap();
    kill_process(keeper, Signal::STOP).unwrap();
    running.line_with("terminated");
    running.line_with("code 76");
    kill_process(keeper, Signal::CONT).unwrap();
}

#[test]
fn killed_shell_leaves_the_lock_to_the_nested_run() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let nested =
            "leasehold run job -- sh -c 'echo inside; until [ -e go ]; do sleep 0.02; done; echo done'";
        let begin = BEGIN.replace("5s", "30s");
        let running = script(&sandbox, &format!("{begin}; {nested}; echo never"));
        running.line_with("inside");
        running.signal(Signal::KILL);
        wait_until_gone(running.pid().as_raw_pid());
        // The keeper renews the lock for the run that relies on it.
        sandbox.wait_for_renewal("job");
        sandbox.run(&["--wait", "1s", "job"], "true").expect(75);
        let waiter = sandbox.start(&["job"], "echo in");
        sandbox.wait_for_line("job", 1, 1);
        std::fs::write(sandbox.path("go"), "").unwrap();
        running.line_with("done");
        waiter.line_with("in");
        waiter.end().expect(0);
    }
}

#[test]
fn killed_nested_run_and_a_release_meanwhile() {
    let sandbox = Sandbox::new();
    let nested = "leasehold run job -- sh -c 'echo inside $PPID $$; until [ -e go ]; do sleep 0.02; done' & ";
    let mut running =
        script(&sandbox, &format!("{BEGIN}; {nested} read -r _; leasehold release; echo code $?; read -r _"));
    let line = running.line_with("inside");
    running.type_in("\n");
    // The release waits for what runs under the lock, and a keeper that waits does answer.
    sandbox.run(&["--wait", "4s", "job"], "true").expect(75);
    let nested = line.split(' ').nth(1).unwrap().parse().unwrap();
    kill_process(Pid::from_raw(nested).unwrap(), Signal::KILL).unwrap();
    running.line_with("code 0");
    assert!(!is_alive(number(&line)), "the command has ended before");
    sandbox.run(&["--no-wait", "job"], "true").expect(0);
}

#[test]
fn release_from_inside_a_nested_run_is_refused() {
    let sandbox = Sandbox::new();
    let script = format!(
        "{BEGIN}; leasehold run job -- sh -c 'leasehold release job; echo inner $?'; leasehold release; echo outer $?"
    );
    let ended = Started::new(sandbox.sh(&script)).end().expect(0).says("from inside a `leasehold run`");
    assert_eq!(ended.out, "inner 64\nouter 0\n", "{ended:?}");
}

#[test]
fn claim_that_nobody_keeps_lets_no_run_in() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let begin = BEGIN.replace("--ttl 5s", "--ttl 1h --on-lost usr1");
    let running = script(
        &sandbox,
        &format!(
            "trap 'echo got' USR1; {begin}; echo held; until [ -e go ]; do sleep 0.05; done; \
             leasehold run --no-wait job -- echo inside; echo code $?; lock=$(leasehold acquire b); eval \"$lock\"; \
             leasehold run --no-wait job -- echo inside; echo code $?"
        ),
    );
    running.line_with("held");
    kill_process(Pid::from_raw(keeper_of(&sandbox)).unwrap(), Signal::KILL).unwrap();
    running.line_with("got");
    std::fs::write(sandbox.path("go"), "").unwrap();
    running.line_with("code 75");
    running.line_with("code 75");
    assert!(!running.end().out.contains("inside"));
}

#[test]
fn exec_inside_a_section_keeps_the_lock_after_the_shell() {
    let sandbox = Sandbox::new();
    let nested =
        "leasehold run --exec job -- sh -c 'echo inside; until [ -e go ]; do sleep 0.02; done; echo done'";
    let running = script(&sandbox, &format!("{BEGIN}; {nested}; echo never"));
    running.line_with("inside");
    running.signal(Signal::KILL);
    wait_until_gone(running.pid().as_raw_pid());
    sandbox.run(&["--wait", "1s", "job"], "true").expect(75);
    std::fs::write(sandbox.path("go"), "").unwrap();
    running.line_with("done");
    sandbox.run(&["--wait", "30s", "job"], "true").expect(0);
}

/// Begins a section in a subshell in the background, which outlives its script.
fn subshell(begin: &str) -> String {
    format!(
        "( {begin} || exit; eval \"$lock\"; echo held; until [ -e go ]; do sleep 0.02; done; \
         leasehold release; echo code $? ) </dev/null & until [ -e end ]; do sleep 0.02; done; exit 0"
    )
}

#[test]
fn subshell_that_outlives_its_script_keeps_its_lock() {
    for (shell, begin) in [
        ("sh", "lock=$(leasehold acquire job)"),
        ("bash", "lock=$(leasehold acquire job)"),
        ("bash", "lock=$(true; leasehold acquire job; true)"),
        ("bash", "me=$BASHPID; lock=$(leasehold acquire --pid $me job)"),
    ] {
        let sandbox = Sandbox::new();
        std::fs::write(sandbox.path("script"), subshell(begin)).unwrap();
        let running = Started::new(sandbox.sh(&format!("exec {shell} script")));
        running.line_with("held");
        std::fs::write(sandbox.path("end"), "").unwrap();
        wait_until_gone(running.pid().as_raw_pid());
        sandbox.run(&["--wait", "1s", "job"], "true").expect(75);
        std::fs::write(sandbox.path("go"), "").unwrap();
        running.line_with("code 0");
        sandbox.run(&["--no-wait", "job"], "true").expect(0);
    }
}

#[test]
fn lock_ends_with_the_last_of_script_and_subshell() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.path("script"),
        subshell("lock=$(leasehold acquire job)").replace("echo held", "sh -c 'echo held $PPID'"),
    )
    .unwrap();
    let running = Started::new(sandbox.sh("exec sh script"));
    let subshell = Pid::from_raw(number(&running.line_with("held"))).unwrap();
    assert_ne!(subshell, running.pid());
    running.signal(Signal::KILL);
    wait_until_gone(running.pid().as_raw_pid());
    sandbox.run(&["--wait", "500ms", "job"], "true").expect(75);
    kill_process(subshell, Signal::KILL).unwrap();
    sandbox.run(&["--wait", "30s", "job"], "true").expect(0);
}

#[test]
fn loss_is_reported_to_the_subshell_and_to_its_script() {
    for on_lost in ["term", "usr1"] {
        for stops in [false, true] {
            let sandbox = Sandbox::new();
            let begin = format!("lock=$(leasehold acquire --on-lost {on_lost} job)");
            let begin = subshell(&begin).replace("echo held", "sh -c 'echo held $PPID'");
            std::fs::write(sandbox.path("script"), begin).unwrap();
            let running = Started::new(sandbox.sh("exec sh script"));
            let subshell = number(&running.line_with("held"));
            match stops {
                // By the warden.
                true => {
                    let keeper = Pid::from_raw(keeper_of(&sandbox)).unwrap();
                    kill_process(keeper, Signal::KILL).unwrap();
                }
                false => drop(sandbox.end(&["break", "--yes", "job"]).expect(0)),
            }
            wait_until_gone(subshell);
            wait_until_gone(running.pid().as_raw_pid());
        }
    }
}

#[test]
fn pid_of_the_substitution_itself_is_refused_with_what_to_do() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.path("script"),
        "lock=$(leasehold acquire --pid $BASHPID job) || exit; echo never",
    )
    .unwrap();
    let ended = Started::new(sandbox.sh("exec bash script")).end().expect(64).says("me=$BASHPID");
    assert_eq!(ended.out, "");
}

#[test]
fn killed_shell_whose_copy_waits_leaves_no_claim() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    // What the script ignores, its copies, leasehold and the keeper ignore, too.
    for begin in ["", "trap '' TERM; "] {
        let script = format!("{begin}lock=$(true; leasehold acquire job; true); echo never");
        std::fs::write(sandbox.path("script"), script).unwrap();
        let waits = Started::new(sandbox.sh("exec bash script"));
        sandbox.wait_for_line("job", 1, 1);
        waits.signal(Signal::KILL);
        sandbox.wait_for_line("job", 1, 0);
    }
    holder.end().expect(0);
}

#[test]
fn signal_of_a_loss_is_sent_once() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let mut running = script(
        &sandbox,
        &format!(
            "trap 'echo got' TERM; {BEGIN}; echo held; until read -r _; do :; done; leasehold release; echo code $?"
        ),
    );
    running.line_with("held");
    let keeper = Pid::from_raw(keeper_of(&sandbox)).unwrap();
    // First its warden sees the end of the lease, and then the keeper itself, when it wakes up.
    kill_process(keeper, Signal::STOP).unwrap();
    running.line_with("got");
    kill_process(keeper, Signal::CONT).unwrap();
    running.complaint_with("job was lost");
    running.type_in("\n");
    running.line_with("code 76");
    let ended = running.end();
    assert_eq!(ended.out.matches("got").count(), 1, "{ended:?}");
}

/// The lease may end while the release has no answer. By then the script does other things than its section.
#[test]
fn script_that_has_left_gets_no_signal_during_a_slow_release() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let begin = BEGIN.replace("5s", "4s");
    let mut running = script(
        &sandbox,
        &format!(
            "trap 'echo got' TERM; {begin}; echo held; read -r _; leasehold release; echo code $?; read -r _; echo over"
        ),
    );
    running.line_with("held");
    let lateness = BlockingLateness::watch();
    redis.server.stop().unwrap();
    running.type_in("\n");
    running.line_with("code");
    // After a stall of the machine the lease may have ended in the section itself, which is a loss.
    let late = lateness.end();
    running.type_in("\n");
    running.line_with("over");
    let ended = running.end();
    assert!(late > Duration::from_millis(500) || !ended.out.contains("got"), "{ended:?}");
}

#[test]
fn keeper_is_shown_by_its_name() {
    let sandbox = Sandbox::new();
    let running = script(&sandbox, &format!("{BEGIN}; echo held; read -r _"));
    running.line_with("held");
    let name = std::fs::read_to_string(format!("/proc/{}/comm", keeper_of(&sandbox))).unwrap();
    assert_eq!(name, "lh-keeper\n");
}

/// The address of a keeper, as every process of the machine can find it.
pub(crate) fn address_of_keeper(running: &Started) -> String {
    let line = running.line_with("keeper ");
    let socket = line.strip_prefix("keeper ").unwrap().split('-').next().unwrap();
    format!("leasehold-keeper-{socket}")
}

#[test]
fn connections_that_say_nothing_do_not_delay_the_release() {
    let sandbox = Sandbox::new();
    let mut running = script(
        &sandbox,
        &format!("{BEGIN}; echo keeper $LEASEHOLD_KEEPER; read -r _; leasehold release; echo code $?"),
    );
    let address = SocketAddr::from_abstract_name(address_of_keeper(&running)).unwrap();
    // Each of them would have been waited for by itself, for five seconds.
    let idle: Vec<_> = (0..20).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
    let mut nonsense = UnixStream::connect_addr(&address).unwrap();
    nonsense.write_all(&[b'x'; 4096]).unwrap();
    running.type_in("\n");
    running.line_with("code 0");
    assert_eq!(nonsense.read(&mut [0; 8]).unwrap_or(0), 0, "no answer");
    drop(idle);
}

#[test]
fn another_user_cannot_delay_the_release() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let sandbox = Sandbox::new();
    let mut running = script(
        &sandbox,
        &format!("{BEGIN}; echo keeper $LEASEHOLD_KEEPER; read -r _; leasehold release; echo code $?"),
    );
    let address = address_of_keeper(&running);
    // It connects as fast as it can, and never reads or writes.
    let flood = "use Socket; $| = 1; my $to = pack('S a*', AF_UNIX, qq(\\0$ARGV[0])); my @open; \
                 for (my $i = 0; ; $i++) { socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; \
                 connect($s, $to) or exit; push @open, $s; shift @open if @open > 900; \
                 print qq(floods\\n) if $i == 5000; }";
    let floods: Vec<_> = (0..2)
        .map(|_| {
            let mut flooder =
                sandbox.sh("exec setpriv --reuid 65534 --regid 65534 --clear-groups perl -e \"$0\" \"$1\"");
            flooder.args([flood, &address]);
            Started::new(flooder)
        })
        .collect();
    floods.iter().for_each(|flood| drop(flood.line_with("floods")));
    running.type_in("\n");
    running.line_with("code 0");
    eventually(|| match sandbox.show("job")["state"] == "free" {
        true => Ok(()),
        false => Err("held".to_owned()),
    });
}

/// Begins a section that follows descriptor 9.
const BEGIN_FD: &str = "lock=$(leasehold acquire --ttl 5s --fd 9 job) || exit; eval \"$lock\" || exit";

#[test]
fn lock_ends_with_its_descriptor() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        for shell in ["sh", "bash"] {
            let begin = BEGIN_FD.replace("5s", "30s");
            std::fs::write(
                sandbox.path("script"),
                format!("{begin}\necho held\nread -r _\nexec 9>&-\necho closed\nread -r _\n"),
            )
            .unwrap();
            let mut running = script(&sandbox, &format!("exec {shell} script"));
            running.line_with("held");
            sandbox.wait_for_renewal("job");
            sandbox.run(&["--wait", "1s", "job"], "true").expect(75);
            running.type_in("\n");
            running.line_with("closed");
            sandbox.run(&["--wait", "30s", "job"], "true").expect(0);
            assert!(running.is_running());
        }
    }
}

#[test]
fn process_that_has_inherited_the_descriptor_keeps_the_lock() {
    let sandbox = Sandbox::new();
    let left = "(until [ -e go ]; do sleep 0.02; done) </dev/null >/dev/null 2>&1 &";
    let running = script(&sandbox, &format!("{BEGIN_FD}; {left} echo held; read -r _"));
    running.line_with("held");
    running.signal(Signal::KILL);
    wait_until_gone(running.pid().as_raw_pid());
    sandbox.run(&["--wait", "1s", "job"], "true").expect(75);
    std::fs::write(sandbox.path("go"), "").unwrap();
    sandbox.run(&["--wait", "30s", "job"], "true").expect(0);
}

#[test]
fn descriptor_that_is_never_opened_is_no_lock_after_the_shell() {
    let sandbox = Sandbox::new();
    let running = script(&sandbox, "lock=$(leasehold acquire --fd 9 job); echo held; read -r _");
    running.line_with("held");
    running.signal(Signal::KILL);
    sandbox.run(&["--wait", "30s", "job"], "true").expect(0);
    for (args, text) in [("--fd 2", "3..=9"), ("--fd 10", "3..=9"), ("--fd 9 --json", "cannot be used with")]
    {
        let ended = Started::new(sandbox.sh(&format!("leasehold acquire {args} job"))).end();
        ended.expect(64).says(text);
    }
}

#[test]
fn section_of_a_descriptor_is_released_and_lost_like_another() {
    let sandbox = Sandbox::new();
    let script_of =
        format!("{BEGIN_FD}; leasehold run --no-wait job -- echo nested; leasehold release; echo code $?");
    assert_eq!(Started::new(sandbox.sh(&script_of)).end().expect(0).out, "nested\ncode 0\n");
    let mut running = script(
        &sandbox,
        &format!(
            "trap 'echo got' TERM; {BEGIN_FD}; echo held; until read -r _; do :; done; leasehold release; echo code $?"
        ),
    );
    running.line_with("held");
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    running.complaint_with("job was lost");
    running.type_in("\n");
    running.line_with("got");
    running.line_with("code 76");
}
