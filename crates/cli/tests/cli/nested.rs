//! A `run` inside a `run`.

use crate::support::Place;

#[test]
fn the_same_name_goes_on_at_once_under_the_same_fence() {
    let place = Place::new();
    let inner = "leasehold run job -- sh -c 'echo inner $LEASEHOLD_FENCE $LEASEHOLD_NAME'";
    let ended = place
        .run(&["job"], &format!("echo outer $LEASEHOLD_FENCE $LEASEHOLD_NAME; {inner}; exit 3"))
        .expect(3);
    let lines: Vec<_> = ended.out.lines().collect();
    let fence = lines[0].strip_prefix("outer ").and_then(|line| line.strip_suffix(" job")).unwrap();
    assert!(fence.len() == 20 && fence.parse::<u64>().unwrap() > 0, "{fence}");
    assert_eq!(lines[1], format!("inner {fence} job"));
    assert_eq!(place.show("job")["state"], "free");
}

#[test]
fn nested_other_name_is_its_own_lock_and_outermost_is_known() {
    let place = Place::new();
    let script =
        "leasehold run b -- leasehold run a -- sh -c 'echo $LEASEHOLD_NAME $LEASEHOLD_FENCE; leasehold ls'";
    let before = place.run(&["a"], "echo $LEASEHOLD_FENCE").expect(0).out;
    let ended = place.run(&["a"], script).expect(0);
    let fence = before.trim().parse::<u64>().unwrap() + 1;
    assert_eq!(ended.out, format!("a {fence:020}\na  1 held\nb  1 held\n"));
}

#[test]
fn the_end_of_the_inner_one_does_not_end_the_hold() {
    let place = Place::new();
    let script = "leasehold run job -- true; LEASEHOLD_OWNER= leasehold run --no-wait job -- true; echo $?";
    assert_eq!(place.run(&["job"], script).expect(0).out, "75\n");
}

#[test]
fn nested_larger_share_is_refused_instead_of_a_self_deadlock() {
    let place = Place::new();
    let ended = place.run(&["--shared", "job"], "leasehold run job -- true; echo $?").expect(0);
    assert_eq!(ended.out, "78\n");
    assert!(ended.err.contains("outer"), "{ended:?}");
    assert_eq!(place.run(&["job"], "leasehold run --shared job -- echo in").expect(0).out, "in\n");
    let same = "leasehold run --permits 3 job -- echo in";
    assert_eq!(place.run(&["--permits", "3", "job"], same).expect(0).out, "in\n");
}

#[test]
fn nested_environment_is_trusted_only_if_the_store_confirms_it() {
    let place = Place::new().with("LEASEHOLD_OWNER", &format!("nonsense,{}", "a".repeat(32)));
    let holder = place.hold(&["job"]);
    place.run(&["--no-wait", "job"], "true").expect(75);
    holder.end().expect(0);
    let ended = place.run(&["--no-wait", "job"], "echo $LEASEHOLD_OWNER").expect(0);
    assert!(!ended.out.contains("nonsense") && ended.out.contains(&"a".repeat(32)), "{ended:?}");
}

#[test]
fn another_store_is_another_lock() {
    let (place, other) = (Place::new(), Place::new());
    let script =
        format!("leasehold run --store {} --no-wait job -- sh -c 'echo $LEASEHOLD_FENCE'", other.url);
    let fence = || place.run(&["job"], &script).expect(0).out.trim().parse::<u64>().unwrap();
    let first = fence();
    assert_eq!(fence(), first + 1);
}

#[test]
fn nested_relative_database_path_is_the_same_file_elsewhere() {
    let place = Place::new();
    let args = ["run", "--store", "sqlite:locks.db", "--no-wait", "job", "--", "sh", "-c"];
    let inner = "cd / && leasehold run --no-wait job -- echo inner";
    assert_eq!(place.end(&[&args[..], &[inner]].concat()).expect(0).out, "inner\n");
}
