//! A password is never shown and never passed on.

use leasehold_testkit::{PostgresServer, RedisServer};

use crate::support::{Redis, Sandbox, Started};

const PASSWORD: &str = "hunter2-and-more";

fn start_or_skip() -> Option<Redis> {
    Redis::build_or_skip(RedisServer::builder().password(PASSWORD))
}

/// A script that looks for the password in the environment and the arguments of each process of the
/// command's group. It reads the group of its own shell, leasehold's own arguments, and every variable of
/// the command.
const LOOK: &str = r#"
group=$(ps -o pgid= -p $$ | tr -d ' ')
for pid in $(ps -o pid= -o pgid= -e | awk -v group="$group" '$2 == group { print $1 }'); do
    tr '\0' '\n' </proc/$pid/environ; tr '\0' ' ' </proc/$pid/cmdline; echo
done 2>/dev/null
tr '\0' ' ' </proc/$PPID/cmdline; echo
echo looked
"#;

#[test]
fn password_is_hidden_from_command_group_and_process_list() {
    let Some(redis) = start_or_skip() else { return };
    let (url, addr) = (redis.server.url(), redis.server.addr());
    assert!(url.contains(PASSWORD));
    for (sandbox, shown) in [
        (Sandbox::on(&url), format!("LEASEHOLD_URL=redis://default@{addr}")),
        (
            Sandbox::on(&format!("redis://{addr}")).with("LEASEHOLD_REDIS_PASSWORD", PASSWORD),
            format!("LEASEHOLD_URL=redis://{addr}"),
        ),
    ] {
        let ended = sandbox.run(&["job"], LOOK).expect(0);
        assert!(ended.out.contains("looked") && ended.out.contains("lh-warden"), "{ended:?}");
        assert!(ended.out.contains(&shown), "{shown} in {}", ended.out);
        assert!(!ended.out.contains(PASSWORD) && !ended.out.contains("hunter2"), "{}", ended.out);
    }
}

/// A parser of ordinary URLs takes the beginning of such a password for a port, and the user for a host.
#[test]
fn password_that_looks_like_a_port_is_not_passed_on() {
    let builder = RedisServer::builder().password("12/hunter2");
    let Some(redis) = Redis::build_or_skip(builder) else { return };
    let addr = redis.server.addr();
    let sandbox = Sandbox::on(&format!("redis://default:12/hunter2@{addr}/0"));
    let ended = sandbox.run(&["job"], LOOK).expect(0);
    assert!(ended.out.contains(&format!("LEASEHOLD_URL=redis://default@{addr}/0\n")), "{}", ended.out);
    assert!(!ended.out.contains("hunter2"), "{}", ended.out);
}

#[test]
fn no_password_of_any_store_is_passed_on() {
    let names = ["ETCD", "MEMCACHED", "REDIS", "SENTINEL", "ZOOKEEPER"];
    let sandbox = names
        .iter()
        .fold(Sandbox::new(), |sandbox, name| sandbox.with(&format!("LEASEHOLD_{name}_PASSWORD"), PASSWORD));
    let ended = sandbox.run(&["job"], "env").expect(0);
    assert!(ended.out.contains("LEASEHOLD_FENCE=") && !ended.out.contains(PASSWORD), "{ended:?}");
}

#[test]
fn no_error_shows_the_password() {
    let Some(redis) = start_or_skip() else { return };
    let wrong = format!("redis://default:hunter2@{}", redis.server.addr());
    let gone = leasehold_testkit::Port::take().unwrap();
    let gone = format!("redis://default:hunter2@{}/0", gone.addr());
    let sandbox = Sandbox::new();
    for (args, code) in [
        (vec!["run", "--store", &wrong, "job", "--", "true"], 78),
        (vec!["run", "--store", &gone, "job", "--", "true"], 69),
        (vec!["ls", "--store", "redis://a:hunter2@h:port"], 64),
        (vec!["ls", "--store", "redis://a:hunter2@h?nonsense=1"], 64),
        (vec!["ls", "--store", "ftp://a:hunter2@h"], 64),
        (vec!["ls", "--store", "redis+unix:///s?pass=hunter2"], 64),
        (vec!["ls", "x", "redis://a:hunter2@h"], 64),
        (vec!["run", "job", "redis://a:hunter2@h", "--", "true"], 64),
        (vec!["show", "--json=redis://a:hunter2@h", "x"], 64),
    ] {
        let ended = sandbox.end(&args).expect(code);
        let output = format!("{}{}", ended.out, ended.err);
        assert!(!output.is_empty() && !output.contains("hunter2"), "{args:?}: {output}");
    }
    // The refusal of a password says what may be missing.
    let sandbox = Sandbox::on(&format!("redis://{}", redis.server.addr()));
    sandbox.run(&["job"], "true").expect(78).says("password-file");
}

#[test]
fn a_password_file_is_passed_on_so_that_a_nested_run_can_log_in() {
    let Some(redis) = start_or_skip() else { return };
    let sandbox = Sandbox::new();
    let file = sandbox.path("secret");
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let url = format!("redis://{}?password-file={}", redis.server.addr(), file.display());
    let mut command =
        sandbox.leasehold(&["run", "job", "--", "leasehold", "run", "job", "--", "sh", "-c", "echo inner"]);
    command.env("LEASEHOLD_URL", &url);
    assert_eq!(Started::new(command).end().expect(0).out, "inner\n");
    // By the password itself it cannot, and says so.
    let sandbox = Sandbox::on(&redis.server.url());
    sandbox.run(&["job"], "leasehold run job -- echo inner").expect(64).says("password-file");
}

#[test]
fn missing_postgres_password_is_reported() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let builder = PostgresServer::builder().password(PASSWORD);
    let Some(server) = runtime.block_on(builder.start_or_skip()) else { return };
    let sandbox = Sandbox::on(&server.url());
    let ended = sandbox.run(&["job"], "leasehold run job -- true || exit 3").expect(3);
    ended.says("asks for a password").says("passes no password on");
}

#[test]
fn url_in_the_wrong_place_is_shown_without_its_password() {
    let sandbox = Sandbox::new();
    for url in ["redis://me:hunter2@h", "redis://me:hun ter2@h", "redis://:\"hunter2@h"] {
        let ended = sandbox.end(&["show", url]).expect(0);
        assert!(ended.out.contains(":***@h: free") && !ended.out.contains("ter2"), "{ended:?}");
        for args in [&["run", "--wait", url, "a", "--", "true"][..], &["ls", "a", url]] {
            let ended = sandbox.end(args).expect(64);
            assert!(ended.err.contains(":***@h") && !ended.err.contains("ter2"), "{ended:?}");
        }
        let ended = sandbox.end(&["run", &format!("--wait={url}"), "a", "--", "true"]).expect(64);
        assert!(ended.err.contains(":***@h") && !ended.err.contains("ter2"), "{ended:?}");
        let holder = sandbox.hold(&["--on-lost", "kill", url]);
        let ended = sandbox.run(&["--no-wait", url], "true").expect(75).says(":***@h is busy");
        assert!(!ended.err.contains("ter2"), "{ended:?}");
        for args in [&["ls"][..], &["break", "--yes", url]] {
            let ended = sandbox.end(args).expect(0);
            assert!(ended.out.contains(":***@h") && !ended.out.contains("ter2"), "{ended:?}");
        }
        holder.end().expect(76);
    }
}
