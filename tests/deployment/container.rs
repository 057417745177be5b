//! The container: the file by its text, and the static command by running it where nothing else is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_testkit::{RedisServer, require};

use crate::{packaging, run, succeed};

#[test]
fn container_has_the_command_alone() {
    let text = fs::read_to_string(packaging().join("container/Containerfile")).unwrap();
    let (build, image) = text.split_once("\nFROM scratch\n").unwrap();
    assert!(build.contains("+crt-static") && build.contains("--locked"), "{build}");
    // Kubernetes can only see that a user is not root if it is a number.
    assert_eq!(image, "COPY --from=build /image/ /\nUSER 65532:65532\nENTRYPOINT [\"/leasehold\"]\n");
}

/// Builds the command as the container file does, in a folder of its own.
fn static_command() -> PathBuf {
    let root = packaging().parent().unwrap().to_owned();
    let host = succeed(Command::new("rustc").arg("-vV"));
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&root).env("RUSTFLAGS", "-C target-feature=+crt-static");
    succeed(cargo.args(["build", "--locked", "--package", "leasehold-cli", "--target", host]));
    target.join(host).join("debug/leasehold")
}

/// Runs the command in a folder that has nothing but it, files that name hosts, and the two folders that every
/// container has: `/dev` for random numbers and `/proc` for the second process.
fn alone(root: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", ENTER]).arg(root).args(arguments);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    run(&mut command)
}

const ENTER: &str = "mount --rbind /dev \"$0/dev\" && mount --rbind /proc \"$0/proc\" && \
                     exec chroot \"$0\" /leasehold \"$@\"";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the whole command once more"]
async fn static_command_runs_in_an_empty_folder() {
    let Some(redis) = RedisServer::start_or_skip().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::copy(static_command(), root.join("leasehold")).unwrap();
    for folder in ["dev", "etc", "proc"] {
        fs::create_dir(root.join(folder)).unwrap();
    }
    let (is_possible, why) =
        run(Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]));
    if !is_possible {
        return require::skip("unshare", &why);
    }
    let (is_success, printed) = alone(root, &["--version"]);
    assert!(is_success && printed.starts_with("leasehold "), "{printed}");
    // Without a store it has no folder to lock in, and must not make up one.
    let (is_success, printed) = alone(root, &["run", "a", "--", "/leasehold", "--version"]);
    assert!(!is_success && !printed.contains("leasehold 0"), "{printed}");
    let lock = |host: &str| {
        let url = redis.url().replace("127.0.0.1", host);
        alone(root, &["run", "--store", &url, "a", "--", "/leasehold", "--version"])
    };
    let (is_success, printed) = lock("127.0.0.1");
    assert!(is_success, "{printed}");
    // A name is looked up by what is part of the C library, without its loadable modules.
    fs::write(root.join("etc/hosts"), "127.0.0.1 locks.example.org\n").unwrap();
    let (is_success, printed) = lock("locks.example.org");
    assert!(is_success, "{printed}");
}
