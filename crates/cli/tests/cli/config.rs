//! Stores by their names in a configuration file.

use std::os::unix::fs::PermissionsExt;

use leasehold_testkit::RedisServer;

use crate::support::{Redis, Sandbox, Started};

fn write(sandbox: &Sandbox, path: &str, text: &str) -> String {
    let path = sandbox.path(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path.display().to_string()
}

const USERS: &str = ".config/leasehold/config.toml";

#[test]
fn named_store_is_that_of_its_url_for_every_command_and_inside() {
    let sandbox = Sandbox::new();
    let prod = format!("file://{}", sandbox.path("prod").display());
    write(&sandbox, USERS, &format!("# stores\n[stores.prod]\nurl = \"{prod}\"\n"));
    let script = "echo $LEASEHOLD_URL; leasehold ls; leasehold ls --store prod";
    let ended = sandbox.run(&["--store", "prod", "job"], script).expect(0);
    assert_eq!(ended.out, format!("{prod}\njob  1 held\njob  1 held\n"));
    let named = sandbox.with("LEASEHOLD_URL", "prod");
    assert_eq!(named.run(&["job"], "leasehold ls").expect(0).out, "job  1 held\n");
}

#[test]
fn users_file_comes_before_and_the_variable_names_the_only_one() {
    let sandbox = Sandbox::new();
    let url = |name: &str| format!("file://{}", sandbox.path(name).display());
    write(&sandbox, USERS, &format!("[stores.a]\nurl = \"{}\"\n", url("of-home")));
    write(&sandbox, "xdg/leasehold/config.toml", &format!("[stores.a]\nurl = \"{}\"\n", url("of-xdg")));
    let named = write(&sandbox, "named.toml", &format!("[stores.a]\nurl = \"{}\"\n", url("of-variable")));
    let xdg = sandbox.path("xdg").display().to_string();
    for (variables, expected) in [
        (&[][..], "of-home"),
        (&[("XDG_CONFIG_HOME", &*xdg)], "of-xdg"),
        (&[("XDG_CONFIG_HOME", &*xdg), ("LEASEHOLD_CONFIG", &*named)], "of-variable"),
    ] {
        let mut command =
            sandbox.leasehold(&["run", "--store", "a", "job", "--", "sh", "-c", "echo $LEASEHOLD_URL"]);
        command.envs(variables.iter().copied());
        assert_eq!(Started::new(command).end().expect(0).out, format!("{}\n", url(expected)));
    }
}

#[test]
fn mistakes_are_named_with_what_to_do() {
    let sandbox = Sandbox::new();
    let asked = |name: &str| sandbox.end(&["ls", "--store", name]).expect(64);
    asked("prod")
        .says("no configuration file names stores")
        .says("/etc/leasehold/config.toml")
        .says("redis://host");
    for (text, name, says) in [
        ("[stores.prod]\nurl = \"file:\"\n[stores.stage]\nurl = \"file:\"\n", "pord", "did you mean prod?"),
        ("[stores.prod]\nurl = \"file:\"\n", "elsewhere", "known are prod"),
        ("[stores.prod]\nurl = \"file:\"\n\npasword-file = \"x\"\n", "prod", "line 4"),
        ("[stores.prod]\nurl = \"file:\"\n\npasword-file = \"x\"\n", "prod", "`password-file`"),
        ("[stores.prod]\npassword-file = \"x\"\n", "prod", "missing field `url`"),
        ("[stores.prod]\nurl = \"stage\"\n", "prod", "the store prod: its url is not a URL"),
        ("[stores.prod]\nurl = \"redis://:hunter2@h\"\npassword-file = \"x\"\n", "prod", "keep one of them"),
        ("[stores.prod]\nurl = \"redis://:hunter2@h\nx", "prod", "line "),
        ("[stores]\nprod = \"redis://:\\\"hunter2@h\"\n", "prod", "line 2"),
        ("[stores.prod]\nurl = \"reddis://h\"\n", "prod", "did you mean redis://"),
    ] {
        write(&sandbox, USERS, text);
        let ended = asked(name).says(says);
        assert!(!ended.err.contains("hunter2"), "{ended:?}");
    }
    let missing = sandbox.path("missing.toml").display().to_string();
    let mut command = sandbox.leasehold(&["ls", "--store", "prod"]);
    command.env("LEASEHOLD_CONFIG", &missing);
    Started::new(command).end().expect(64).says("named by LEASEHOLD_CONFIG");
    write(&sandbox, USERS, "[stores.memory]\nurl = \"mem:\"\n");
    sandbox.end(&["ls", "--store", "memory"]).expect(78).says("mem:");
}

#[test]
fn relative_path_of_a_database_starts_at_the_folder_of_the_file() {
    let sandbox = Sandbox::new();
    write(&sandbox, USERS, "[stores.prod]\nurl = \"sqlite:locks.db?timeout=5s\"\n");
    let script =
        "mkdir other; cd other; LEASEHOLD_OWNER= leasehold run --no-wait --store prod job -- true; echo $?";
    assert_eq!(sandbox.run(&["--store", "prod", "job"], script).expect(0).out, "75\n");
    assert!(sandbox.path(".config/leasehold/locks.db").exists());
    // So it does if the file is named by a relative path.
    let script = "cd .config && LEASEHOLD_CONFIG=leasehold/config.toml leasehold ls --store prod && cd leasehold && \
                  LEASEHOLD_CONFIG=config.toml leasehold ls --store prod";
    assert_eq!(Started::new(sandbox.sh(script)).end().expect(0).out, "");
}

#[test]
fn home_that_is_no_folder_has_no_file() {
    let sandbox = Sandbox::new().with("HOME", "/dev/null");
    sandbox.end(&["ls", "--store", "prod"]).expect(64).says("looked for").says("/etc/leasehold/config.toml");
    let sandbox = sandbox.with("LEASEHOLD_CONFIG", "/dev/null/config.toml");
    sandbox.end(&["ls", "--store", "prod"]).expect(64).says("named by LEASEHOLD_CONFIG");
}

#[test]
fn file_that_others_may_write_is_refused() {
    let sandbox = Sandbox::new();
    let path = write(&sandbox, USERS, "[stores.prod]\nurl = \"file:\"\n");
    for mode in [0o620, 0o602] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        sandbox.end(&["ls", "--store", "prod"]).expect(78).says("chmod go-w");
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    sandbox.end(&["ls", "--store", "prod"]).expect(0);
}

#[test]
fn password_is_read_from_its_file_and_reaches_no_command() {
    let Some(redis) = Redis::build_or_skip(RedisServer::builder().password("hunter2")) else { return };
    let sandbox = Sandbox::new();
    let with = redis.server.url();
    let without = with.replace(":hunter2@", "@");
    write(&sandbox, ".config/leasehold/secret", "hunter2\n");
    let table = |url: &str, more: &str| format!("[stores.prod]\nurl = \"{url}\"\n{more}");
    write(&sandbox, USERS, &table(&without, "password-file = \"secret\"\n"));
    let script = "echo $LEASEHOLD_URL; leasehold run b -- echo nested";
    let ended = sandbox.run(&["--store", "prod", "a"], script).expect(0);
    assert!(ended.out.contains("password-file=/") && ended.out.ends_with("nested\n"), "{ended:?}");
    assert!(!ended.out.contains("hunter2"), "{ended:?}");
    let path = write(&sandbox, USERS, &table(&with, ""));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let ended = sandbox.run(&["--store", "prod", "a"], "echo $LEASEHOLD_URL").expect(0).says("chmod 600");
    assert!(!ended.out.contains("hunter2") && !ended.err.contains("hunter2"), "{ended:?}");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(sandbox.run(&["--store", "prod", "a"], "true").expect(0).err, "");
}

/// The command may change its folder, and a `leasehold run` in it reads the same file.
#[test]
fn relative_password_file_is_passed_on_by_its_whole_path() {
    let Some(redis) = Redis::build_or_skip(RedisServer::builder().password("hunter2")) else { return };
    let sandbox = Sandbox::new().with("LEASEHOLD_CONFIG", "conf/stores.toml");
    let url = redis.server.url().replace(":hunter2@", "@");
    write(&sandbox, "secret", "hunter2\n");
    write(&sandbox, "conf/hidden", "hunter2\n");
    let stores = format!(
        "[stores.own]\nurl = \"{url}\"\npassword-file = \"hidden\"\n\
         [stores.in-url]\nurl = \"{url}?password-file=hidden\"\n"
    );
    write(&sandbox, "conf/stores.toml", &stores);
    for store in [&*format!("{url}?password-file=secret"), "own", "in-url"] {
        let script = "mkdir -p inner && cd inner && leasehold run b -- echo nested";
        let ended = sandbox.run(&["--store", store, "a"], script);
        assert_eq!((ended.code(), &*ended.out), (0, "nested\n"), "{store}: {ended:?}");
    }
}

#[test]
fn a_url_reads_no_configuration() {
    let sandbox = Sandbox::new().with("LEASEHOLD_CONFIG", "/no/such/file");
    sandbox.run(&["job"], "true").expect(0);
    sandbox.run(&["--store", "file:", "job"], "true").expect(0);
}

#[test]
fn file_that_is_judged_is_the_one_that_is_read() {
    use std::io::Write;
    let sandbox = Sandbox::new();
    // A pipe that everybody may write to, which a file without fault replaces while it is read.
    let path = sandbox.path("config.toml");
    Started::new(sandbox.sh("mkfifo config.toml && chmod 666 config.toml")).end().expect(0);
    let good = write(&sandbox, "good.toml", "[stores.prod]\nurl = \"file:\"\n");
    std::fs::set_permissions(&good, PermissionsExt::from_mode(0o644)).unwrap();
    let writer = std::thread::spawn({
        let path = path.clone();
        move || {
            // It waits for the reader.
            let mut pipe = std::fs::File::options().write(true).open(&path).unwrap();
            let _ = pipe.write_all(b"[stores.prod]\nurl = \"redis://127.0.0.1:1\"\n");
            std::fs::rename(good, path).unwrap();
        }
    });
    let mut command = sandbox.leasehold(&["ls", "--store", "prod"]);
    command.env("LEASEHOLD_CONFIG", &path);
    Started::new(command).end().expect(78).says("other users may write to it");
    writer.join().unwrap();
}
