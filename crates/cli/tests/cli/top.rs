//! `top` on a real terminal: each view, its keys, its questions, and how it ends.

use std::time::Duration;

use leasehold::{Client, Note};
use leasehold_testkit::Data;
use rustix::process::{Signal, kill_process};

use crate::support::emulator::Emulator;
use crate::support::pty::{PROMPT, Pty};
use crate::support::{Redis, Sandbox, eventually};

/// Parts that are never the same twice.
const MASKS: [(&str, &str); 10] = [
    (r"\.tmp\w+", "[DIR]"),
    (r"\d\d:\d\d:\d\dZ", "[CLOCK]"),
    (r"\d{4}-\d\d-\d\dT", "[DATE]T"),
    (r"every \d+m?s", "every [TIME]"),
    (r" +(\d+m )?\d+s +(-|\d+s)( +\d)", " [AGE] [LEFT]$3"),
    (r" +(\d+m )?\d+s (mutex|for|left)", " [AGE] $2"),
    (r"(holds|waits) (\d+m )?\d+s", "$1 [AGE]"),
    (r"took \d+ ms, and the next follows \d+m?s", "took [TIME], and the next follows [TIME]"),
    (r"\b[0-9a-f]{32}\b", "[TAG]"),
    (r"\b\d{20}\b", "[FENCE]"),
];

fn check(name: &str, emulator: &Emulator) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    for (mask, named) in MASKS {
        settings.add_filter(mask, named);
    }
    let lines: Vec<String> = emulator.screen().lines().map(|line| line.trim_end().to_owned()).collect();
    settings.bind(|| insta::assert_snapshot!(name, lines.join("\n")));
}

/// Waits until the shell has its terminal back, and shows a prompt.
#[track_caller]
fn prompt(shell: &mut Emulator) {
    shell.wait("a prompt", |screen| screen.trim_end().ends_with(PROMPT.trim_end()));
}

#[test]
fn a_stuck_lock_is_found_understood_and_revoked() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let holder = sandbox.start(&["--note", "ann at db1", "--on-revoke", "term", "orders/42"], script);
    holder.line_with("ready");
    let waiter = sandbox.start(&["--note", "ben at db2", "orders/42"], "echo in");
    let other = sandbox.hold(&["--note", "cid at db3", "nightly"]);
    sandbox.wait_for_line("orders/42", 1, 1);
    let mut top = Emulator::top(&sandbox, &[]);
    top.wait("both holders", |screen| screen.contains("ann at db1") && screen.contains("cid at db3"));
    top.see("2 locks, 1 with a queue");
    // The lock with the longest queue comes first.
    top.see("sorted by queue");
    top.wait("the lock under the cursor", |screen| screen.contains("> orders/42"));
    check("top-list", &top);
    top.press("ss");
    top.see("sorted by name");
    top.wait("the lock under the cursor", |screen| screen.contains("> nightly"));
    top.press("SS");
    top.see("sorted by queue");
    top.press("\r");
    top.wait("the queue", |screen| screen.contains("QUEUE OF 1") && screen.contains("ben at db2"));
    check("top-lock", &top);
    top.press("r");
    top.see("Ask the 1 holder of orders/42 to release it?");
    top.see("Reason: asked by an operator at ");
    top.press(" now\r");
    top.see("orders/42: asked ann at db1");
    holder.line_with("asked");
    waiter.line_with("in");
    top.wait("the end of the hold", |screen| screen.contains("until ") && screen.contains("ann at db1"));
    top.press("q");
    assert_eq!(top.end().0, Some(0));
    holder.end().expect(0).says("now");
    waiter.end().expect(0);
    other.end().expect(0);
}

#[test]
fn break_asks_first_and_a_refusal_breaks_nothing() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--note", "ann", "job"]);
    let mut top = Emulator::top(&sandbox, &[]);
    top.see("ann");
    for refusal in ["n", "\x1b", "\r"] {
        top.press("b");
        top.see("Break job: end 1 claim by force?");
        top.see("only a resource");
        if refusal == "n" {
            check("top-break", &top);
        }
        top.press(refusal);
        top.miss("by force?");
    }
    assert_eq!(sandbox.show("job")["state"], "held");
    top.press("b");
    top.see("by force?");
    top.press("y");
    top.see("job: broken: ann");
    top.see("No lock is held or waited for.");
    holder.end().expect(76);
    top.press("\x03");
    assert_eq!(top.end().0, Some(0));
}

#[test]
fn read_only_view_refuses_to_revoke_and_to_break() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--note", "ann", "job"]);
    let mut top = Emulator::top(&sandbox, &["--read-only"]);
    top.see("ann");
    for key in ["r", "b"] {
        top.press(key);
        top.see("it was started with --read-only");
        top.press("g");
        top.miss("it was started with --read-only");
    }
    drop(top);
    holder.end().expect(0);
}

#[test]
fn filter_pause_help_and_prefix() {
    let sandbox = Sandbox::new();
    let holders: Vec<_> = ["a/1", "a/2", "b/1"].map(|name| sandbox.hold(&["--note", name, name])).into();
    let mut top = Emulator::top(&sandbox, &[]);
    top.see("3 locks");
    top.press("/b/");
    top.see("Filter: b/_");
    top.miss("a/1");
    top.press("\r");
    top.see("1-1 of 1 found in 3");
    top.press("\x1b");
    top.see("a/1");
    top.press("p");
    top.see("PAUSED");
    let more = sandbox.hold(&["c/1"]);
    top.watch(Duration::from_millis(1500));
    assert!(top.screen().contains("3 locks"), "{}", top.screen());
    top.press("p");
    top.see("4 locks");
    top.press("?");
    top.wait("the whole page", |screen| {
        ["WHAT THIS COSTS THE STORE", "4 looks at", "Esc back"].iter().all(|text| screen.contains(text))
    });
    check("top-help", &top);
    top.press("\x1b");
    top.see("> a/1");
    drop(top);
    let mut top = Emulator::top(&sandbox, &["a/"]);
    top.see("2 locks");
    assert!(top.line("top  file:").contains(" a/*"), "{}", top.screen());
    drop(top);
    holders.into_iter().chain([more]).for_each(|holder| drop(holder.end().expect(0)));
}

#[test]
fn a_terminal_changes_its_size() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--note", "ann", "job"]);
    let mut top = Emulator::top(&sandbox, &[]);
    top.see("ann");
    top.resize((40, 120));
    top.see("WAITED");
    assert_eq!(top.screen().lines().filter(|line| line.contains("q quit")).count(), 1, "{}", top.screen());
    top.resize((10, 40));
    top.wait("advice", |screen| {
        let text = screen.split_whitespace().collect::<Vec<_>>().join(" ");
        text.contains("has 40 columns and 10 lines") && text.contains("`leasehold ls`")
    });
    top.resize((24, 80));
    top.see("ann");
    top.miss("enlarge");
    top.press("q");
    assert_eq!(top.end().0, Some(0));
    holder.end().expect(0);
}

#[test]
fn colours_are_omitted_on_request() {
    for no_colour in [false, true] {
        let sandbox = if no_colour { Sandbox::new().with("NO_COLOR", "1") } else { Sandbox::new() };
        let holder = sandbox.hold(&["--note", "ann", "job"]);
        let waiter = sandbox.start(&["job"], "true");
        sandbox.wait_for_line("job", 1, 1);
        let mut top = Emulator::top(&sandbox, &[]);
        top.see("ann");
        top.see("1 with a queue");
        let screen = top.parser.screen();
        let cells = (0..24).flat_map(|line| (0..80).map(move |column| (line, column)));
        let plain = |at: (u16, u16)| {
            let cell = screen.cell(at.0, at.1).unwrap();
            (cell.fgcolor(), cell.bgcolor()) == (vt100::Color::Default, vt100::Color::Default)
        };
        assert_eq!(cells.clone().all(plain), no_colour, "{}", top.screen());
        assert!(cells.clone().any(|at| screen.cell(at.0, at.1).unwrap().inverse()), "the cursor is reversed");
        drop(top);
        holder.end().expect(0);
        waiter.end().expect(0);
    }
}

#[test]
fn without_a_terminal_it_names_the_command_to_use() {
    let sandbox = Sandbox::new();
    let ended = sandbox.end(&["top"]).expect(64);
    assert!(
        ended.err.contains("stdout is not a terminal") && ended.err.contains("leasehold ls"),
        "{ended:?}"
    );
    let dumb = Sandbox::new();
    let (status, screen) =
        Pty::start(&dumb, "sh", &["-c", "TERM=dumb leasehold top; leasehold top >file; echo code $?"]).end();
    assert_eq!(status.code(), Some(0));
    assert!(screen.contains("without a cursor") && screen.contains("code 64"), "{screen:?}");
}

#[test]
fn the_terminal_is_restored_however_the_view_ends() {
    let sandbox = Sandbox::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut top = Emulator::top(&sandbox, &[]);
        top.see("No lock is held");
        assert!(top.parser.screen().alternate_screen() && top.parser.screen().hide_cursor());
        top.signal(signal);
        let (ended, parser) = top.end();
        assert_eq!(ended, Some(code));
        assert!(!parser.screen().alternate_screen() && !parser.screen().hide_cursor());
    }
    // The shell behind it reads lines again, with an echo.
    let mut shell = Emulator::start(&sandbox, "bash", &["--norc", "--noprofile", "-i"], (24, 80));
    prompt(&mut shell);
    shell.press("leasehold top\r");
    shell.see("No lock is held");
    shell.press("q");
    prompt(&mut shell);
    shell.press("echo it is ba''ck\r");
    shell.see("it is back");
    assert!(!shell.parser.screen().alternate_screen());
}

#[test]
fn ctrl_z_gives_the_screen_to_the_shell_and_fg_draws_it_anew() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--note", "ann", "job"]);
    let mut shell = Emulator::start(&sandbox, "bash", &["--norc", "--noprofile", "-i"], (24, 80));
    prompt(&mut shell);
    for stop in ["\x1a", "\x1a"] {
        let start = if shell.screen().contains("Stopped") { "fg\r" } else { "leasehold top\r" };
        shell.press(start);
        shell.see("1 lock, 0 with a queue");
        shell.see("ann");
        assert!(shell.parser.screen().alternate_screen());
        shell.press(stop);
        shell.see("Stopped");
        prompt(&mut shell);
        assert!(!shell.parser.screen().alternate_screen() && !shell.parser.screen().hide_cursor());
    }
    shell.press("fg\r");
    shell.see("1 lock, 0 with a queue");
    // Keys arrive one by one again.
    shell.press("?");
    shell.see("KEYS");
    shell.press("q");
    prompt(&mut shell);
    shell.press("echo co''de $?\r");
    shell.see("code 0");
    drop(shell);
    holder.end().expect(0);
}

#[test]
fn notes_of_others_do_not_control_the_terminal() {
    let sandbox = Sandbox::new();
    let holder =
        sandbox.hold(&["--note", "\u{1b}]0;owned\u{7}\u{1b}[31mann\u{9b}2J\r\n\u{202e}", "job\u{202e}"]);
    let mut top = Emulator::top(&sandbox, &[]);
    top.see("\\u{1b}]0;owned");
    top.see("job\\u{202e}");
    top.press("\r");
    top.see("QUEUE OF 0");
    top.see("2J\\r\\n\\u{202e}");
    top.press("b");
    top.see("by force?");
    let raw = String::from_utf8_lossy(&top.raw).into_owned();
    for part in ["\u{1b}]0;", "\u{9b}", "\u{7}", "\u{202e}"] {
        assert!(!raw.contains(part), "{part:?} in {raw:?}");
    }
    top.press("\x03");
    assert_eq!(top.end().0, Some(0));
    holder.end().expect(0);
}

#[test]
fn a_server_that_dies_and_returns_is_shown_as_such() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let holder = sandbox.hold(&["--note", "ann", "job"]);
    let mut top = Emulator::top(&sandbox, &[]);
    top.see("ann");
    redis.server.kill().unwrap();
    top.see("NO ANSWER for");
    assert!(top.screen().contains("ann"), "the last picture stays:\n{}", top.screen());
    redis.block_on(redis.server.restart(Data::Keep)).unwrap();
    top.miss("NO ANSWER");
    top.see("as of");
    top.press("q");
    assert_eq!(top.end().0, Some(0));
    drop(holder);
}

#[test]
fn ten_thousand_locks_of_a_server_are_shown() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let url = redis.server.url();
    // Leases are kept alive in the background.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _guards = runtime.block_on(async {
        // One thread sends ten thousand requests at once, and a busy machine needs its time for the answers.
        let patient = format!("{url}?timeout=60s");
        let locks = Client::builder().note(Note::new("one of many").unwrap()).open(&patient).await.unwrap();
        let mut taken = tokio::task::JoinSet::new();
        for number in 0..10_000 {
            let mutex = locks.mutex(format!("lock/{number:05}")).ttl(Duration::from_secs(600));
            taken.spawn(async move { mutex.lock().await.unwrap() });
        }
        taken.join_all().await
    });
    let sandbox = Sandbox::on(&url);
    let mut top = Emulator::top(&sandbox, &[]);
    top.see("10,000 locks");
    top.see("one of many");
    top.press("G");
    top.see("> lock/09999");
    // The last page is looked at before its turn comes.
    top.wait("holders on the last page", |screen| {
        screen.lines().any(|line| line.contains("lock/09999") && line.contains("one of many"))
    });
    top.press("/09990\r");
    top.see("1-1 of 1 found in 10,000");
    top.press("\r");
    top.see("lock/09990: held");
    top.press("q");
    assert_eq!(top.end().0, Some(0));
}

#[test]
fn a_deadlock_is_marked_and_drawn() {
    let sandbox = Sandbox::new();
    let nested = |name: &str, then: &str| {
        let wait = format!("touch held-{name}; until [ -e held-{then} ]; do sleep 0.01; done");
        let inner = format!("{wait}; leasehold run --note in-{name} {then} -- echo has {then}");
        sandbox.start(&["--note", name, name], &inner)
    };
    let (ann, ben) = (nested("a", "b"), nested("b", "a"));
    eventually(|| {
        let listed = sandbox.end(&["ls", "--deadlocks"]);
        if listed.code() == 1 { Ok(()) } else { Err(format!("{listed:?}")) }
    });
    let mut top = Emulator::top(&sandbox, &[]);
    top.see("1 DEADLOCK");
    top.wait("marks", |screen| screen.contains(">!a ") && screen.contains(" !b "));
    top.press("w");
    top.see("DEADLOCK OF 2 WAITS");
    top.see("in-a holds a");
    top.see("and waits for b (mutex), which is held by");
    top.press("j\r");
    top.see("QUEUE OF 1");
    top.press("q");
    assert_eq!(top.end().0, Some(0));
    drop((ann, ben));
}

#[test]
fn a_terminal_that_takes_no_output_does_not_delay_the_end() {
    let sandbox = Sandbox::new();
    let mut pty = Pty::start_unread(&sandbox, "leasehold", &["top"]);
    // From then on it takes keys and signals.
    eventually(|| if pty.is_raw() { Ok(()) } else { Err("it reads lines".to_owned()) });
    pty.stop_output();
    // Each key draws a whole screen.
    for _ in 0..20 {
        pty.press("\x0c");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(pty.pid(), Signal::TERM).unwrap();
    assert_eq!(pty.end().0.code(), Some(143));
}

#[test]
fn key_answers_no_question_that_the_terminal_has_not_taken() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--note", "ann", "job"]);
    let mut pty = Pty::start_unread(&sandbox, "leasehold", &["top"]);
    eventually(|| if pty.is_raw() { Ok(()) } else { Err("it reads lines".to_owned()) });
    pty.stop_output();
    for _ in 0..3 {
        pty.press("b");
        // The question has arrived by then, and is on no screen.
        std::thread::sleep(Duration::from_secs(1));
        pty.press("y");
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(sandbox.show("job")["state"], "held");
    kill_process(pty.pid(), Signal::TERM).unwrap();
    assert_eq!(pty.end().0.code(), Some(143));
    holder.end().expect(0);
}
