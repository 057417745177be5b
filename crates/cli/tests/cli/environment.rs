//! The environment and the working directory of the command.

use crate::support::{Sandbox, Started, number};

#[test]
fn the_command_sees_the_name_the_fence_the_owner_and_the_store() {
    let sandbox = Sandbox::new();
    let ended = sandbox.run(&["orders/42 ä"], "env | grep ^LEASEHOLD_ | sort").expect(0);
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    let fence = lines[0].strip_prefix("LEASEHOLD_FENCE=").unwrap();
    assert!(fence.len() == 20 && fence.parse::<u64>().unwrap() > 0, "{fence}");
    assert_eq!(lines[1], "LEASEHOLD_NAME=orders/42 ä");
    let owner = lines[2].strip_prefix("LEASEHOLD_OWNER=").unwrap();
    assert!(owner.len() == 32 && owner.bytes().all(|byte| byte.is_ascii_hexdigit()), "{owner}");
    assert_eq!(lines[3], format!("LEASEHOLD_URL={}", sandbox.url));
}

#[test]
fn the_owner_is_the_tag_that_observers_see_and_not_the_secret() {
    let sandbox = Sandbox::new();
    let holder = sandbox.start(&["job"], "echo $LEASEHOLD_OWNER; echo ready; read -r _; sleep 100");
    let owner = holder.line_with("");
    assert_eq!(sandbox.show("job")["holders"][0]["tag"], owner.as_str());
    // The tag is not enough to end the claim: no file of the store has it in its name or content.
    let mut grep = sandbox.sh(&format!("grep -rl {owner} store; find store -name '*{owner}*'"));
    grep.env_remove("LEASEHOLD_URL");
    assert_eq!(Started::new(grep).end().out, "");
}

#[test]
fn the_store_that_was_named_by_a_flag_is_passed_on_too() {
    let (sandbox, other) = (Sandbox::new(), Sandbox::new());
    let ended = sandbox.run(&["--store", &other.url, "job"], "echo $LEASEHOLD_URL").expect(0);
    assert_eq!(ended.out.trim(), other.url);
}

/// A variable that a script has inherited, as from `at`, from a daemon or from a section that is over, does not show
/// that it runs under the lock.
#[test]
fn script_that_locks_itself_trusts_nothing_inherited() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/migration/flock.md");
    let page = std::fs::read_to_string(page).unwrap();
    let row = page.lines().find(|line| line.contains("FLOCKER")).unwrap();
    let recipe = row.rsplit('`').nth(1).unwrap().replace("\\|", "|");
    let sandbox = Sandbox::new().with("LEASEHOLD_NAME", "nightly");
    sandbox.program("script", format!("#!/bin/sh\n{recipe}\necho \"$# $*\"\n"));
    let holder = sandbox.hold(&["nightly"]);
    let run = || Started::new(sandbox.sh("exec ./script 'a b' c")).end();
    assert_eq!(run().expect(75).out, "", "{recipe}");
    holder.end().expect(0);
    assert_eq!(run().expect(0).out, "2 a b c\n", "{recipe}");
}

#[test]
fn fences_rise_from_run_to_run() {
    let sandbox = Sandbox::new();
    let mut last = String::new();
    for _ in 0..5 {
        let fence = sandbox.run(&["job"], "echo $LEASEHOLD_FENCE").expect(0).out;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[test]
fn the_command_runs_in_a_process_group_of_its_own() {
    let sandbox = Sandbox::new();
    let ended = sandbox.run(&["job"], "echo $(ps -o pgid= -p $PPID) $(ps -o pgid= -p $$)").expect(0);
    let groups: Vec<_> = ended.out.split_whitespace().map(number).collect();
    assert_ne!(groups[0], groups[1]);
}

#[test]
fn command_inherits_the_signal_masks_it_would_have_without_us() {
    let sandbox = Sandbox::new();
    let masks = "grep -E 'Sig(Blk|Ign)' /proc/self/status";
    let without = Started::new(sandbox.sh(masks)).end().expect(0).out;
    for args in [&["job"][..], &["--same-group", "job"]] {
        assert_eq!(sandbox.run(args, masks).expect(0).out, without, "{args:?}");
    }
}
