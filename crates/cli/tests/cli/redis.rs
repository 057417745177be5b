//! The particular cases of a store on a network.

use rustix::process::Signal;

use leasehold_testkit::RedisSentinel;

use crate::acquire::script;
use crate::support::{Redis, Sandbox};

#[test]
fn an_interrupted_wait_leaves_nothing_on_the_server() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let holder = sandbox.hold(&["job"]);
    for _ in 0..5 {
        let waiter = sandbox.start(&["job"], "echo never");
        sandbox.wait_for_line("job", 1, 1);
        waiter.signal(Signal::INT);
        waiter.end().expect_end_by(Signal::INT);
        sandbox.wait_for_line("job", 1, 0);
    }
    holder.end().expect(0);
    assert_eq!(sandbox.show("job")["state"], "free");
}

#[test]
fn release_timeout_is_reported_and_exit_code_is_the_commands() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let holder = sandbox.hold(&["--ttl", "1m", "job"]);
    redis.server.stop().unwrap();
    assert_eq!(warnings(&holder.end().expect(0).err), 1);
    redis.server.resume().unwrap();
}

/// Counts the lines that say that a release is not confirmed.
fn warnings(err: &str) -> usize {
    err.lines().filter(|line| line.contains("did not confirm")).count()
}

#[test]
fn release_that_is_given_up_early_is_reported_once() {
    for _ in 0..10 {
        let Some(redis) = Redis::start_or_skip() else { return };
        let sandbox = Sandbox::on(&redis.server.url());
        let holder = sandbox.hold(&["--ttl", "3s", "job"]);
        redis.server.kill().unwrap();
        let ended = holder.end();
        // On a machine that stands still for the ttl, the lock is lost before the command has ended.
        if ended.code() != 76 {
            assert_eq!(warnings(&ended.expect(0).err), 1);
            return;
        }
    }
    panic!("the lock was lost each time");
}

#[test]
fn release_that_the_store_refuses_is_reported_once() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let rights = |rights: &[&str]| {
        let command = [&["ACL", "SETUSER", "limited"], rights].concat();
        redis.block_on(redis.server.command(&command)).unwrap();
    };
    rights(&["on", ">secret", "allkeys", "allchannels", "+@all"]);
    let sandbox = Sandbox::on(&redis.server.url().replace("redis://", "redis://limited:secret@"));
    let holder = sandbox.hold(&["--ttl", "30s", "job"]);
    let acquire = "lock=$(leasehold acquire --ttl 30s section) || exit; eval \"$lock\"";
    let section = script(&sandbox, &format!("{acquire}; echo held; read -r _; leasehold release"));
    section.line_with("held");
    rights(&["-@all"]);
    assert_eq!(warnings(&holder.end().expect(0).err), 1);
    assert_eq!(warnings(&section.end().expect(0).err), 1);
}

#[test]
fn a_wait_that_ends_while_the_store_is_away_is_not_busy() {
    for is_killed in [false, true] {
        let Some(redis) = Redis::start_or_skip() else { return };
        let sandbox = Sandbox::on(&redis.server.url());
        let holder = sandbox.hold(&["--ttl", "1m", "job"]);
        // Shorter than an outage that is tolerated, and long enough to be seen while it waits.
        let waits = sandbox.start(&["--wait", "12s", "job"], "echo never");
        sandbox.wait_for_line("job", 1, 1);
        match is_killed {
            true => redis.server.kill().unwrap(),
            false => redis.server.stop().unwrap(),
        }
        let ended = waits.end().expect(69).says("not granted within").says(&redis.server.url());
        assert_eq!(ended.out, "");
        if !is_killed {
            redis.server.resume().unwrap();
        }
        drop(holder);
    }
}

/// An outage is tolerated for 15 s, also by a claim that is already queued.
#[test]
fn a_wait_without_a_limit_ends_if_the_store_stays_away() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let holder = sandbox.hold(&["--ttl", "1m", "job"]);
    let waits = sandbox.start(&["job"], "echo never");
    sandbox.wait_for_line("job", 1, 1);
    redis.server.kill().unwrap();
    let ended = waits.end().expect(69).says(&redis.server.url());
    assert_eq!(ended.out, "");
    drop(holder);
}

#[test]
fn unused_fences_are_swept() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let fence = |sandbox: &Sandbox| -> u64 {
        let output = sandbox.run(&["job"], "echo $LEASEHOLD_FENCE").expect(0).out;
        output.trim().parse().unwrap()
    };
    let before = fence(&sandbox);
    let ended = sandbox.end(&["sweep"]).expect(0);
    assert_eq!(ended.out, "1 names seen, 0 removed, 0 kept for their fences and emptied\n");
    let ended = sandbox.end(&["sweep", "--unused-for", "0s", "--json"]).expect(0);
    assert_eq!(ended.out, "{\"seen\":1,\"emptied\":0,\"removed\":1}\n");
    assert!(fence(&sandbox) > before);
}

#[test]
fn many_locks_are_listed_page_by_page() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let url = redis.server.url();
    let names =
        |out: &str| out.lines().map(|line| line.split("  ").next().unwrap().to_owned()).collect::<Vec<_>>();
    let held = redis.block_on(async {
        let locks = leasehold::Client::open(&url).await.unwrap();
        let mut guards = Vec::new();
        for number in 0..1203 {
            guards.push(locks.mutex(format!("page/{number:04}")).lock().await.unwrap());
        }
        guards.push(locks.mutex("other").lock().await.unwrap());
        (locks, guards)
    });
    let sandbox = Sandbox::on(&url);
    let listed = sandbox.end(&["ls", "page/"]).expect(0).out;
    let expected: Vec<_> = (0..1203).map(|number| format!("page/{number:04}")).collect();
    assert_eq!(names(&listed), expected);
    assert_eq!(sandbox.end(&["ls", "--json"]).expect(0).out.lines().count(), 1204);
    // A reader that closes the pipe early is not an error.
    let mut head = sandbox.sh("leasehold ls --json | head -n 1; leasehold ls | head -n 1");
    head.stdin(std::process::Stdio::null());
    let ended = crate::support::Started::new(head).end().expect(0);
    assert_eq!(ended.err, "");
    drop(held);
}

#[test]
fn sentinel_failover_loss_is_reported_to_the_running_command() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // The Sentinels elect nobody where the machine stands still for a moment.
    let builder = RedisSentinel::builder().down_after(std::time::Duration::from_secs(5));
    let Some(group) = runtime.block_on(builder.start_or_skip()) else { return };
    let sandbox = Sandbox::on(&group.url());
    let fence = || {
        let ended = sandbox.run(&["job"], "echo $LEASEHOLD_FENCE").expect(0);
        ended.out.trim().parse::<leasehold::Fence>().unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    };
    assert_eq!(fence().epoch, 1, "before the first election");
    // The replicas do not receive the next one.
    for replica in [1, 2] {
        group.stop(replica).unwrap();
    }
    runtime.block_on(group.server(0).command(&["CLIENT", "KILL", "TYPE", "replica"])).unwrap();
    let holder = sandbox.start(&["--ttl", "6s", "job"], "echo held; exec sleep 60");
    holder.line_with("held");
    group.kill(0).unwrap();
    for replica in [1, 2] {
        group.resume(replica).unwrap();
    }
    holder.end().expect(76).says("job was lost");
    // A busy machine may need a second election.
    runtime.block_on(group.promoted(0)).unwrap();
    assert!(fence().epoch > 1);
}
