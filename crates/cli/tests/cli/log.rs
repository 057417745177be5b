//! The library's log on stderr.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use leasehold_testkit::RedisServer;

use crate::support::{Redis, Sandbox, Started};

#[test]
fn warnings_are_shown_unless_the_environment_says_otherwise() {
    let Some(redis) = Redis::build_or_skip(RedisServer::builder().password("hunter2-and-more")) else {
        return;
    };
    let url = format!("redis://default:hunter2-and-more@localhost:{}", redis.server.addr().port());
    let sandbox = Sandbox::new();
    let file = sandbox.path("secret");
    std::fs::write(&file, "hunter2-and-more\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let by_file = format!("redis://{}?password-file={}", redis.server.addr(), file.display());
    let sandbox = Sandbox::on(&by_file);
    for args in [&["ls"][..], &["run", "job", "--", "true"]] {
        let ended =
            sandbox.end(args).expect(0).says("leasehold: warning: every user of this machine may read");
        assert_eq!(ended.out, "");
    }
    let silenced = Sandbox::on(&by_file).with("LEASEHOLD_LOG", "off");
    assert_eq!(silenced.end(&["ls"]).expect(0).err, "");
    Sandbox::on(&by_file).with("LEASEHOLD_LOG", "loud").end(&["ls"]).expect(64).says("LEASEHOLD_LOG");
    // Everything there is to say holds no password, and stdout stays as it was.
    let ended = Sandbox::on(&url).end(&["-vvv", "run", "job", "--", "echo", "in"]).expect(0);
    assert!(ended.out == "in\n" && !ended.err.contains("hunter2"), "{ended:?}");
}

#[test]
fn grants_and_releases_are_shown_on_demand() {
    let sandbox = Sandbox::new();
    let ended = sandbox.end(&["-v", "run", "job", "--", "sh", "-c", "echo $LEASEHOLD_FENCE"]).expect(0);
    let granted = format!("leasehold: info: granted, name: job, fence: {}", ended.out);
    assert_eq!(ended.err, format!("{granted}leasehold: info: released, name: job\n"));
    assert_eq!(sandbox.end(&["run", "job", "--", "true"]).expect(0).err, "");
}

#[test]
fn log_level_that_is_not_utf8_is_refused() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["ls"]);
    command.env("LEASEHOLD_LOG", OsStr::from_bytes(b"\xff"));
    Started::new(command).end().expect(64).says("LEASEHOLD_LOG");
}

#[test]
fn failed_renewal_and_its_recovery_are_reported() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&format!("{}?timeout=2s", redis.server.url()));
    let holder = sandbox.hold(&["--ttl", "20s", "job"]);
    redis.server.stop().unwrap();
    holder.complaint_with("job could not be renewed, and is lost in ");
    redis.server.resume().unwrap();
    holder.complaint_with("job was renewed again");
    holder.end().expect(0);
}
