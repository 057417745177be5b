//! The command inherits no descriptor of ours, and nothing of ours keeps the user's streams open.

use crate::support::{Place, Redis, Started, is_alive, number};

#[test]
fn command_inherits_the_descriptors_it_would_have_without_us() {
    let place = Place::new();
    let list = "ls -l /proc/self/fd | sed 's/.* \\([0-9]*\\) -> .*/\\1/' | sort -n";
    let without = Started::new(place.sh(list)).end().expect(0);
    for redis in [false, true] {
        let server = if redis { Redis::start_or_skip() } else { None };
        let place = server.as_ref().map_or_else(Place::new, |server| Place::on(&server.server.url()));
        let with = place.run(&["job"], list).expect(0);
        assert_eq!(with.out, without.out);
    }
}

#[test]
fn a_pipe_behind_it_ends_with_the_command() {
    let place = Place::new();
    let ended = Started::new(place.sh("leasehold run job -- echo out | cat; echo closed")).end().expect(0);
    assert_eq!(ended.out, "out\nclosed\n");
}

#[test]
fn nothing_is_left_running() {
    let place = Place::new();
    let ended = place.run(&["job"], "ps -o pgid= -p $$").expect(0);
    let warden = number(&ended.out);
    assert!(!is_alive(warden), "the warden leads the command's group, and has ended before us");
}
