//! The line of a long operation, which is for a terminal only.

use crate::support::pty::Pty;
use crate::support::{Redis, Sandbox};

#[test]
fn sweep_shows_what_it_does_on_a_terminal_and_removes_the_line() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    redis.server.stop().unwrap();
    let mut pty = Pty::start(&sandbox, "leasehold", &["sweep"]);
    pty.see("leasehold: sweeping redis://");
    redis.server.resume().unwrap();
    let (status, screen) = pty.end();
    assert_eq!(status.code(), Some(0), "{screen:?}");
    let last = screen.rsplit("\r\x1b[K").next().unwrap();
    assert!(last.contains("names seen") && !last.contains("sweeping"), "{screen:?}");
}

#[test]
fn without_a_terminal_nothing_is_shown() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    redis.server.stop().unwrap();
    let sweep = crate::support::Started::new(sandbox.leasehold(&["sweep"]));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    redis.server.resume().unwrap();
    assert_eq!(sweep.end().expect(0).err, "");
}
