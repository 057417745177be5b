//! `run --also`: several locks, all or none.

use serde_json::Value;

use crate::support::{Redis, Sandbox, Started};

fn sandboxes() -> (Option<Redis>, Vec<Sandbox>) {
    let redis = Redis::start_or_skip();
    let on_redis = redis.as_ref().map(|redis| Sandbox::on(&redis.server.url()));
    (redis, [Some(Sandbox::new()), on_redis].into_iter().flatten().collect())
}

#[test]
fn all_are_held_and_each_has_its_fence() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let script = "echo $LEASEHOLD_NAME; echo \"$LEASEHOLD_FENCES\"; leasehold ls; \
                      leasehold show --json a | tr -d '\\n'; leasehold show --json 'b c'";
        let ended = sandbox.run(&["--also", "a", "--also", "b c", "--also", "a", "z"], script).expect(0);
        let lines: Vec<_> = ended.out.lines().collect();
        assert_eq!(lines[0], "z", "{ended:?}");
        let fences: Vec<_> = lines[1..4].iter().map(|line| line.split_once(' ').unwrap()).collect();
        assert_eq!(fences.iter().map(|(_, name)| *name).collect::<Vec<_>>(), ["z", "a", "b c"], "{ended:?}");
        for name in ["a", "b c", "z"] {
            assert_eq!(sandbox.show(name)["state"], "free");
            assert!(ended.out.contains(&format!("{name}  1 held")) || name.len() == 1, "{ended:?}");
        }
        let shown: Value = serde_json::from_str(
            lines.last().unwrap().rsplit_once("}{").map(|(_, last)| format!("{{{last}")).unwrap().as_str(),
        )
        .unwrap();
        assert_eq!(shown["fence"], fences[2].0);
    }
}

#[test]
fn none_is_held_if_one_is_busy() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let holder = sandbox.hold(&["--note", "ann", "b"]);
        for wait in [&["--no-wait"][..], &["--wait", "300ms"]] {
            let args = [wait, &["--also", "c", "--also", "b", "a"]].concat();
            let ended = sandbox.run(&args, "echo never").expect(75).says("b ").says("held").says("ann");
            assert_eq!(ended.out, "");
        }
        for name in ["a", "c"] {
            assert_eq!(sandbox.show(name)["state"], "free");
        }
        holder.end().expect(0);
    }
}

#[test]
fn overlapping_names_in_any_order_never_wait_in_a_circle() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let started: Vec<Started> = (0..12)
            .map(|turn| match turn % 3 {
                0 => sandbox.start(&["--also", "b", "a"], "true"),
                1 => sandbox.start(&["--also", "a", "b"], "true"),
                _ => sandbox.start(&["--also", "c", "--also", "a", "b"], "true"),
            })
            .collect();
        for run in started {
            run.end().expect(0);
        }
    }
}

#[test]
fn loss_of_one_ends_the_command() {
    let sandbox = Sandbox::new();
    let running = sandbox.start(&["--also", "b", "a"], "echo ready; exec sleep 1000");
    running.line_with("ready");
    sandbox.end(&["break", "--yes", "b"]).expect(0);
    running.end().expect(76).says("b was lost");
    assert_eq!(sandbox.show("a")["state"], "free");
}

#[test]
fn killed_with_several_locks_frees_all_after_the_command() {
    let sandbox = Sandbox::new();
    let holder = sandbox.start(
        &["--also", "b", "--also", "c", "a"],
        "trap '' TERM; : >marks; echo ready; while :; do echo mark; done >>marks",
    );
    holder.line_with("ready");
    let script = "before=$(wc -c <marks); sleep 0.05; after=$(wc -c <marks); [ $before = $after ]";
    let waiter = sandbox.start(&["--also", "c", "b"], script);
    sandbox.wait_for_line("b", 1, 1);
    holder.signal(rustix::process::Signal::KILL);
    waiter.end().expect(0);
    sandbox.run(&["--wait", "30s", "a"], "true").expect(0);
}

#[test]
fn nested_run_takes_only_what_is_not_held_outside() {
    let sandbox = Sandbox::new();
    let inner =
        "leasehold run --no-wait --also a --also c b -- sh -c 'echo \"$LEASEHOLD_FENCES\"; leasehold ls'";
    let script = format!("echo \"$LEASEHOLD_FENCES\"; {inner}");
    let ended = sandbox.run(&["--also", "b", "a"], &script).expect(0);
    let lines: Vec<_> = ended.out.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines[0], lines[3], "{ended:?}");
    assert_eq!(lines[1], lines[2], "{ended:?}");
    assert!(lines[4].ends_with(" c"), "{ended:?}");
    assert_eq!(lines[5..], ["a  1 held", "b  1 held", "c  1 held"]);
    // A nested run that is done has released its own, and no other.
    assert_eq!(
        sandbox.run(&["--also", "b", "a"], "leasehold run --also a c -- true; leasehold ls").expect(0).out,
        "a  1 held\nb  1 held\n"
    );
}

#[test]
fn names_without_room_in_the_environment_are_refused_at_once() {
    let sandbox = Sandbox::new();
    let names = Vec::from_iter((0..300).map(|number| format!("{number:0>480}")));
    let _holder = sandbox.hold(&[&names[0]]);
    let all = Vec::from_iter(names.iter().flat_map(|name| ["--also", name]));
    let args = [&all[..], &["--no-wait", &names[0]]].concat();
    sandbox.run(&args, "true").expect(64).says("LEASEHOLD_FENCES").says("--also");
    sandbox.end(&[&["acquire"], &args[..]].concat()).expect(64).says("LEASEHOLD_FENCES");
    // As many tags as fit, but for two.
    let (tag, owner) = ("a".repeat(32), vec!["a".repeat(32); 3970].join(","));
    let sandbox = Sandbox::new().with("LEASEHOLD_OWNER", &owner);
    let three = ["--also", "b", "--also", "c", "a"];
    sandbox.run(&three[2..], "true").expect(64).says("LEASEHOLD_OWNER");
    sandbox.run(&["a"], "true").expect(0);
    // Those of a section that is over are left out.
    let keeper = format!("{}-0-0:{tag}=x", "b".repeat(32));
    let sandbox = sandbox.with("LEASEHOLD_KEEPER", &keeper);
    assert_eq!(sandbox.run(&three, "echo ${#LEASEHOLD_OWNER}").expect(0).out, "98\n");
}
