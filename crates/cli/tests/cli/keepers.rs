//! Keepers of sections under attack: waits for oneself, other networks, and impostors.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::acquire::{BEGIN, keeper_of, sandboxes, script};
use crate::sections::address_of_keeper;
use crate::support::{LIMIT, Sandbox, Started, wait_until_gone};

fn address(running: &Started) -> SocketAddr {
    SocketAddr::from_abstract_name(address_of_keeper(running)).unwrap()
}

#[test]
fn run_inside_a_nested_run_is_let_in_while_the_release_waits() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let inner = "touch begun; echo inside; until [ -e go ]; do sleep 0.02; done; \
                     leasehold run job -- echo step; echo code $?";
        // A release that comes before the nested run waits for nothing.
        let begun = "until [ -e begun ]; do sleep 0.02; done";
        for end in ["exit 0", "leasehold release job; echo released $?"] {
            for file in ["go", "begun"] {
                drop(std::fs::remove_file(sandbox.path(file)));
            }
            let nested = format!("leasehold run job -- sh -c '{inner}' &");
            let running = script(&sandbox, &format!("{BEGIN}; {nested} {begun}; {end}"));
            running.line_with("inside");
            // The keeper waits for the nested run.
            sandbox.run(&["--wait", "1s", "job"], "true").expect(75);
            std::fs::write(sandbox.path("go"), "").unwrap();
            running.line_with("step");
            running.line_with("code 0");
            if end != "exit 0" {
                running.line_with("released 0");
            }
            sandbox.run(&["--wait", "30s", "job"], "true").expect(0);
        }
    }
}

#[test]
fn section_that_is_over_refuses_others_with_a_reason() {
    let sandbox = Sandbox::new();
    let nested = "leasehold run job -- sh -c 'echo inside; until [ -e go ]; do sleep 0.02; done' &";
    let mut running = script(
        &sandbox,
        &format!(
            "{BEGIN}; {nested} (until [ -e late ]; do sleep 0.02; done; leasehold run job -- echo never; \
             echo late $?) & read -r _; leasehold release; echo released $?"
        ),
    );
    running.line_with("inside");
    running.type_in("\n");
    sandbox.run(&["--wait", "1s", "job"], "true").expect(75);
    std::fs::write(sandbox.path("late"), "").unwrap();
    running.line_with("late 78");
    running.complaint_with("is over");
    std::fs::write(sandbox.path("go"), "").unwrap();
    running.line_with("released 0");
    assert!(!running.end().out.contains("never"));
}

#[test]
fn keeper_of_another_network_is_not_said_to_be_gone() {
    let sandbox = Sandbox::new();
    if Started::new(sandbox.sh("unshare -n true")).end().status.code() != Some(0) {
        return eprintln!("skipped: no network namespace can be made");
    }
    let script = format!(
        "{BEGIN}; unshare -n leasehold run job -- echo never; echo run $?; unshare -n leasehold release job; \
         echo release $?; lock=$(unshare -n leasehold acquire b); eval \"$lock\"; \
         leasehold run --no-wait job -- echo nested; leasehold release job; echo code $?"
    );
    let ended = Started::new(sandbox.sh(&script)).end().says("another network namespace");
    assert_eq!(ended.out, "run 69\nrelease 69\nnested\ncode 0\n", "{ended:?}");
}

#[test]
fn outer_section_is_not_released_under_an_inner_one() {
    let sandbox = Sandbox::new();
    let script = "take() { lock=$(leasehold acquire \"$@\") || exit; eval \"$lock\"; }
        take fa; take --also fa fb
        leasehold release fa; echo early $?
        leasehold release fb; echo inner $?
        leasehold release fa; echo outer $?; leasehold ls";
    let ended = Started::new(sandbox.sh(script)).end().expect(0).says("an inner section of the same script");
    assert_eq!(ended.out, "early 64\ninner 0\nouter 0\n", "{ended:?}");
}

#[test]
fn sections_of_one_name_are_released_one_after_the_other() {
    let sandbox = Sandbox::new();
    let script = "take() { lock=$(leasehold acquire \"$@\") || exit; eval \"$lock\"; }
        take a; take a
        leasehold release a; echo inner $?; leasehold ls
        leasehold release a; echo outer $?; leasehold ls
        leasehold release a; echo none $?
        take b; take c; leasehold release c; echo named $?; leasehold release; echo rest $?; leasehold ls";
    let ended = Started::new(sandbox.sh(script)).end().expect(0);
    let expected = "inner 0\na  1 held\nouter 0\nnone 76\nnamed 0\nrest 0\n";
    assert_eq!(ended.out, expected, "{ended:?}");
    // An inner script that releases twice does not release the lock of the outer one.
    let inner =
        format!("{BEGIN}; leasehold release job; echo inner $?; leasehold release job; echo again $?");
    std::fs::write(sandbox.path("inner"), inner).unwrap();
    let outer = format!("{BEGIN}; sh inner; leasehold ls; leasehold release job; echo outer $?");
    let ended = Started::new(sandbox.sh(&outer)).end().expect(0);
    assert_eq!(ended.out, "inner 0\nagain 76\njob  1 held\nouter 0\n", "{ended:?}");
}

#[test]
fn keeper_that_is_kept_busy_says_that_the_release_is_to_come() {
    let sandbox = Sandbox::new();
    let nested = "leasehold run job -- sh -c 'echo inside; until [ -e go ]; do sleep 0.02; done' &";
    let running = script(&sandbox, &format!("{BEGIN}; echo keeper $LEASEHOLD_KEEPER; {nested} read -r _"));
    let address = address(&running);
    running.line_with("inside");
    let mut asker = UnixStream::connect_addr(&address).unwrap();
    asker.set_read_timeout(Some(LIMIT)).unwrap();
    asker.write_all(b"release\n").unwrap();
    let keeper = Pid::from_raw(keeper_of(&sandbox)).unwrap();
    let (done, is_done) = channel::<()>();
    let busy = std::thread::spawn(move || {
        while is_done.recv_timeout(Duration::from_millis(200)) == Err(RecvTimeoutError::Timeout) {
            let _ = kill_process(keeper, Signal::USR1);
        }
    });
    let mut signs = [0; 12];
    asker.read_exact(&mut signs).unwrap();
    assert_eq!(&signs, b"waits\nwaits\n");
    drop(done);
    busy.join().unwrap();
    std::fs::write(sandbox.path("go"), "").unwrap();
}

#[test]
fn shell_started_from_the_same_shell_is_another_one() {
    for shell in ["sh", "bash"] {
        let sandbox = Sandbox::new();
        let inner = format!("{BEGIN}; echo held; exit 0");
        let outer = format!("inner=1 {shell} script; echo left; until [ -e end ]; do sleep 0.02; done");
        std::fs::write(sandbox.path("script"), format!("if [ $inner ]; then {inner}; fi\n{outer}\n"))
            .unwrap();
        let mut running = Started::new(sandbox.sh(&format!("exec {shell} script")));
        running.line_with("held");
        running.line_with("left");
        sandbox.run(&["--wait", "30s", "job"], "true").expect(0);
        assert!(running.is_running());
    }
}

#[test]
fn keeper_with_few_descriptors_refuses_and_is_still_there() {
    let sandbox = Sandbox::new();
    let mut running = script(
        &sandbox,
        &format!(
            "ulimit -S -n 64; ulimit -H -n 140; {BEGIN}; echo owner $LEASEHOLD_OWNER; \
             echo keeper $LEASEHOLD_KEEPER; read -r _; leasehold run job -- echo nested; echo run $?; \
             read -r _; leasehold release; echo code $?"
        ),
    );
    let tag = running.line_with("owner").replace("owner ", "");
    let address = address(&running);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", keeper_of(&sandbox))).unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(limit.split_whitespace().nth(3), Some("140"), "{limit}");
    let follow = || {
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(format!("follow {tag}\n").as_bytes()).unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        (stream, word)
    };
    let mut followers = Vec::new();
    loop {
        match follow() {
            (_, word) if &word == b"full" => break,
            (stream, _) => followers.push(stream),
        }
        assert!(followers.len() < 140);
    }
    running.type_in("\n");
    running.line_with("run 69");
    running.complaint_with("as many nested runs");
    drop(followers);
    running.type_in("\n");
    running.line_with("code 0");
    assert!(!running.end().out.contains("nested"));
}

#[test]
fn follower_stays_whatever_the_length_of_its_request() {
    let sandbox = Sandbox::new();
    let running = script(
        &sandbox,
        &format!("{BEGIN}; echo owner $LEASEHOLD_OWNER; echo keeper $LEASEHOLD_KEEPER; read -r _"),
    );
    let tag = running.line_with("owner").replace("owner ", "");
    let address = address(&running);
    // A keeper first reads into a buffer of 64 bytes. A read that fills it does not say whether more is to come.
    for (length, digits) in [(63, vec![14]), (64, vec![15]), (65, vec![16]), (128, vec![13; 4])] {
        let callers: String =
            digits.iter().map(|digits| format!(" 1234567.{}", "1".repeat(*digits))).collect();
        let request = format!("follow {tag}{callers}\n");
        assert_eq!(request.len(), length, "{request}");
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reports = BufReader::new(&stream);
        let mut report = String::new();
        reports.read_line(&mut report).unwrap();
        assert_eq!(report, "held\n", "a request of {length} bytes");
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let next = reports.read_line(&mut report);
        assert!(next.is_err(), "a request of {length} bytes: {next:?} {report}");
    }
}

#[test]
fn name_of_a_dead_keeper_is_no_keeper_for_another_user() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let sandbox = Sandbox::new();
    let begin = BEGIN.replace("acquire", "acquire --on-lost ignore");
    let mut running = script(
        &sandbox,
        &format!("{begin}; echo keeper $LEASEHOLD_KEEPER; read -r _; leasehold release; echo code $?"),
    );
    let name = address_of_keeper(&running);
    let keeper = keeper_of(&sandbox);
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
    wait_until_gone(keeper);
    let squat = "use Socket; $| = 1; my $at = pack('S a*', AF_UNIX, qq(\\0$ARGV[0])); \
                 socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; bind($s, $at) or die; listen($s, 8) or die; \
                 print qq(squats\\n); sleep 1000";
    let mut squatter =
        sandbox.sh("exec setpriv --reuid 65534 --regid 65534 --clear-groups perl -e \"$0\" \"$1\"");
    squatter.args([squat, &name]);
    let squatter = Started::new(squatter);
    squatter.line_with("squats");
    running.type_in("\n");
    running.line_with("code 76");
    running.complaint_with("keeper is gone");
}
