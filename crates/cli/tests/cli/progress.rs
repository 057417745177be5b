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

#[test]
fn sweep_counts_the_names_while_it_runs() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let names: Vec<String> = (0..40).map(|number| format!("job-{number}")).collect();
    let also: Vec<&str> = names.iter().skip(1).flat_map(|name| ["--also", name]).collect();
    sandbox.run(&[&also[..], &[&names[0]]].concat(), "true").expect(0);
    // Other keys, which make the way long.
    let fill = "for i = 1, 10000 do redis.call('SET', 'x' .. ARGV[1] .. i, 1) end";
    for part in 0..20 {
        redis.block_on(redis.server.command(&["EVAL", fill, "0", &format!("{part}/")])).unwrap();
    }
    let mut pty = Pty::start(&sandbox, "leasehold", &["sweep", "--unused-for", "0s"]);
    pty.see("leasehold: sweeping redis://");
    pty.see(" names seen, ");
    pty.see(" swept, for ");
    // The names are found all along the way.
    let (status, screen) = pty.end();
    assert_eq!(status.code(), Some(0), "{screen:?}");
    assert!(screen.contains("40 names seen, 40 removed, 0 kept for their fences and emptied"), "{screen:?}");
    let counts: Vec<u32> = screen
        .split("sweeping ")
        .skip(1)
        .filter_map(|line| line.split(": ").nth(1)?.split(' ').next()?.parse().ok())
        .collect();
    assert!(counts.is_sorted() && counts.last().is_some_and(|last| *last > 0), "{counts:?} of {screen:?}");
}
