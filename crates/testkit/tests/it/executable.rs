//! Programs that a test writes, and then starts.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_testkit::{copy_executable, write_executable};

/// Writes a program and starts it, many times, while other threads start processes.
fn starts_each_time(write: impl Fn(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(Command::new("true").status().unwrap().success());
                }
            });
        }
        let started = (0..50).try_for_each(|number| {
            let program = folder.path().join(format!("program-{number}"));
            write(&program);
            Command::new(&program).status().map(|status| assert!(status.success()))
        });
        is_over.store(true, Ordering::Relaxed);
        started.unwrap();
    });
}

#[test]
fn written_program_starts_while_other_threads_start_processes() {
    starts_each_time(|program| write_executable(program, "#!/bin/sh\nexit 0\n").unwrap());
}

#[test]
fn copied_program_starts_while_other_threads_start_processes() {
    starts_each_time(|program| copy_executable(Path::new("/bin/true"), program).unwrap());
}

#[test]
fn program_that_cannot_be_written_is_an_error() {
    let path = Path::new("/nowhere/at/all");
    assert!(write_executable(path, "").unwrap_err().to_string().contains("/nowhere/at/all"));
    assert!(copy_executable(Path::new("/bin/true"), path).is_err());
}
