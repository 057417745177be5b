//! The command inherits no descriptor of ours, and nothing of ours keeps the user's streams open.

use crate::support::{Redis, Sandbox, Started, is_alive, number};

#[test]
fn command_inherits_the_descriptors_it_would_have_without_us() {
    let sandbox = Sandbox::new();
    let list = "ls -l /proc/self/fd | sed 's/.* \\([0-9]*\\) -> .*/\\1/' | sort -n";
    let without = Started::new(sandbox.sh(list)).end().expect(0);
    for redis in [false, true] {
        let server = if redis { Redis::start_or_skip() } else { None };
        let sandbox = server.as_ref().map_or_else(Sandbox::new, |server| Sandbox::on(&server.server.url()));
        for args in [&["job"][..], &["--same-group", "job"]] {
            let with = sandbox.run(args, list).expect(0);
            assert_eq!(with.out, without.out, "{args:?}");
        }
    }
}

#[test]
fn a_pipe_behind_it_ends_with_the_command() {
    let sandbox = Sandbox::new();
    let ended = Started::new(sandbox.sh("leasehold run job -- echo out | cat; echo closed")).end().expect(0);
    assert_eq!(ended.out, "out\nclosed\n");
}

#[test]
fn no_process_is_left_running() {
    let sandbox = Sandbox::new();
    let ended = sandbox.run(&["job"], "ps -o pgid= -p $$").expect(0);
    let warden = number(&ended.out);
    assert!(!is_alive(warden), "the warden leads the command's group, and has ended before us");
}
