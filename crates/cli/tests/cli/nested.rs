//! A `run` inside a `run`.

use crate::support::Sandbox;

#[test]
fn nested_run_of_the_same_name_starts_at_once_same_fence() {
    let sandbox = Sandbox::new();
    let inner = "leasehold run job -- sh -c 'echo inner $LEASEHOLD_FENCE $LEASEHOLD_NAME'";
    let ended = sandbox
        .run(&["job"], &format!("echo outer $LEASEHOLD_FENCE $LEASEHOLD_NAME; {inner}; exit 3"))
        .expect(3);
    let lines: Vec<_> = ended.out.lines().collect();
    let fence = lines[0].strip_prefix("outer ").and_then(|line| line.strip_suffix(" job")).unwrap();
    assert!(fence.len() == 20 && fence.parse::<u64>().unwrap() > 0, "{fence}");
    assert_eq!(lines[1], format!("inner {fence} job"));
    assert_eq!(sandbox.show("job")["state"], "free");
}

#[test]
fn nested_other_name_is_its_own_lock_and_outermost_is_known() {
    let sandbox = Sandbox::new();
    let script =
        "leasehold run b -- leasehold run a -- sh -c 'echo $LEASEHOLD_NAME $LEASEHOLD_FENCE; leasehold ls'";
    let before = sandbox.run(&["a"], "echo $LEASEHOLD_FENCE").expect(0).out;
    let ended = sandbox.run(&["a"], script).expect(0);
    let fence = before.trim().parse::<u64>().unwrap() + 1;
    assert_eq!(ended.out, format!("a {fence:020}\na  1 held\nb  1 held\n"));
}

#[test]
fn end_of_the_inner_run_does_not_release_the_lock() {
    let sandbox = Sandbox::new();
    let script = "leasehold run job -- true; LEASEHOLD_OWNER= leasehold run --no-wait job -- true; echo $?";
    assert_eq!(sandbox.run(&["job"], script).expect(0).out, "75\n");
}

#[test]
fn nested_larger_share_is_refused_instead_of_a_self_deadlock() {
    let sandbox = Sandbox::new();
    let ended = sandbox.run(&["--shared", "job"], "leasehold run job -- true; echo $?").expect(0);
    assert_eq!(ended.out, "78\n");
    assert!(ended.err.contains("outer"), "{ended:?}");
    assert_eq!(sandbox.run(&["job"], "leasehold run --shared job -- echo in").expect(0).out, "in\n");
    let same = "leasehold run --permits 3 job -- echo in";
    assert_eq!(sandbox.run(&["--permits", "3", "job"], same).expect(0).out, "in\n");
}

#[test]
fn nested_environment_is_trusted_only_if_the_store_confirms_it() {
    let sandbox = Sandbox::new().with("LEASEHOLD_OWNER", &format!("nonsense,{}", "a".repeat(32)));
    let holder = sandbox.hold(&["job"]);
    sandbox.run(&["--no-wait", "job"], "true").expect(75);
    holder.end().expect(0);
    let ended = sandbox.run(&["--no-wait", "job"], "echo $LEASEHOLD_OWNER").expect(0);
    assert!(!ended.out.contains("nonsense") && ended.out.contains(&"a".repeat(32)), "{ended:?}");
}

#[test]
fn another_store_is_another_lock() {
    let (sandbox, other) = (Sandbox::new(), Sandbox::new());
    let script =
        format!("leasehold run --store {} --no-wait job -- sh -c 'echo $LEASEHOLD_FENCE'", other.url);
    let fence = || sandbox.run(&["job"], &script).expect(0).out.trim().parse::<u64>().unwrap();
    let first = fence();
    assert_eq!(fence(), first + 1);
}

#[test]
fn nested_relative_database_path_is_the_same_file_elsewhere() {
    let sandbox = Sandbox::new();
    let args = ["run", "--store", "sqlite:locks.db", "--no-wait", "job", "--", "sh", "-c"];
    let inner = "cd / && leasehold run --no-wait job -- echo inner";
    assert_eq!(sandbox.end(&[&args[..], &[inner]].concat()).expect(0).out, "inner\n");
}
