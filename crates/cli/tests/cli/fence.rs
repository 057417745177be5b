//! `fence`: a file that refuses an older holder.

use crate::support::{Sandbox, Started};

#[test]
fn older_holder_is_refused_after_a_newer_one_was_here() {
    let sandbox = Sandbox::new();
    let check = "leasehold fence check stock; echo $?";
    let old = sandbox.run(&["job"], &format!("echo $LEASEHOLD_FENCE; {check}; {check}")).expect(0);
    let (fence, codes) = old.out.split_once('\n').unwrap();
    assert_eq!(codes, "0\n0\n", "the same holder may come again");
    let write = "echo new | leasehold fence write stock; echo $?";
    assert_eq!(sandbox.run(&["job"], write).expect(0).out, "0\n");
    let late = sandbox.end(&["fence", "check", "--fence", fence, "stock"]).expect(76);
    assert!(late.err.contains("a later holder"), "{late:?}");
    let mut command = sandbox.sh("echo old | leasehold fence write stock");
    command.env("LEASEHOLD_FENCE", fence);
    Started::new(command).end().expect(76);
    assert_eq!(std::fs::read_to_string(sandbox.path("stock")).unwrap(), "new\n");
}

#[test]
fn holder_that_is_overtaken_meanwhile_writes_nothing() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["fence", "write", "--fence", "00000000000000000007", "stock"]);
    command.stdin(std::process::Stdio::piped());
    let mut slow = Started::new(command);
    slow.type_in("old");
    crate::support::eventually(|| {
        let seen = std::fs::read_to_string(sandbox.path("stock.fence")).unwrap_or_default();
        seen.contains('7').then_some(()).ok_or(seen)
    });
    sandbox.end(&["fence", "check", "--fence", "00000000000000000008", "stock"]).expect(0);
    slow.end().expect(76);
    assert!(!sandbox.path("stock").exists());
}

/// As long as a process that is stopped inside a call.
#[test]
fn fence_that_stays_locked_is_reported_as_busy() {
    let sandbox = Sandbox::new();
    let check = ["fence", "check", "--fence", "00000000000000000001", "stock"];
    sandbox.end(&check).expect(0);
    let stopped = std::fs::File::open(sandbox.path("stock.fence")).unwrap();
    stopped.lock().unwrap();
    sandbox
        .end(&check)
        .expect(75)
        .says("stock.fence stays locked: a process that uses it is at work, stopped or hangs; wait for it");
    stopped.unlock().unwrap();
    sandbox.end(&check).expect(0);
}

#[test]
fn without_a_fence_nothing_is_let_in() {
    let sandbox = Sandbox::new();
    sandbox.end(&["fence", "check", "stock"]).expect(78).says("LEASEHOLD_FENCE is not set");
    sandbox.end(&["fence", "check", "--fence", "x", "stock"]).expect(64);
    let mut command = sandbox.leasehold(&["fence", "check", "stock"]);
    command.env("LEASEHOLD_FENCE", "apples");
    Started::new(command).end().expect(64).says("apples");
    sandbox.end(&["fence", "check", "--fence", "00000000000000000001", "no/such/folder/stock"]).expect(74);
    std::fs::write(sandbox.path("stock.fence"), "12 apples").unwrap();
    sandbox
        .end(&["fence", "check", "--fence", "00000000000000000001", "stock"])
        .expect(78)
        .says("does not hold a fence");
}
