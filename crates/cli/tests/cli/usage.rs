//! Invalid command lines exit with 64 and say what to write; help and version are not errors.

use crate::support::Sandbox;

#[test]
fn usage_error_exits_64() {
    let sandbox = Sandbox::new();
    let long_name = "x".repeat(513);
    let long_note = "x".repeat(1025);
    let run = |args: &[&'static str]| [&["run"], args, &["--", "true"]].concat();
    for (args, text) in [
        (vec![], "Usage"),
        (vec!["nonsense"], "nonsense"),
        (run(&["--nonsense", "job"]), "--nonsense"),
        (run(&[]), "<NAME>"),
        (vec!["run", "job"], "COMMAND"),
        (vec!["run", "job", "true"], "true"),
        (run(&[""]), "name is empty"),
        (run(&["a\nb"]), "control character"),
        (vec!["run", &long_name, "--", "true"], "512"),
        (vec!["run", "--note", &long_note, "job", "--", "true"], "1024"),
        (run(&["--wait", "30", "job"]), "30s"),
        (run(&["--ttl", "soon", "job"]), "30s"),
        (run(&["--ttl", "1ms", "job"]), "too short"),
        (run(&["--max-hold", "0s", "job"]), "max_hold"),
        (run(&["--wait", "1s", "--no-wait", "job"]), "cannot be used with"),
        (run(&["--shared", "--permits", "2", "job"]), "cannot be used with"),
        (run(&["--permits", "0", "job"]), "permits"),
        (run(&["--on-lost", "weep", "job"]), "term"),
        (run(&["--store", "nonsense", "job"]), "redis://"),
        (run(&["--store", "ftp://x", "job"]), "redis://"),
        (run(&["--store", "redis://", "job"]), "host is missing"),
        (run(&["--store", "redis://h?tiemout=1s", "job"]), "timeout"),
        (run(&["--store", "", "job"]), "--store is empty"),
        (run(&["--store", "file:locks", "job"]), "file:///a/path"),
        (vec!["show"], "<NAME>"),
        (vec!["show", ""], "name is empty"),
        (vec!["break", "--json", "job"], "--yes"),
        (vec!["break", "job"], "--yes"),
        (vec!["completions", "cmd.exe"], "bash"),
    ] {
        sandbox.end(&args).expect(64).says(text);
    }
}

#[test]
fn non_utf8_environment_exits_64_and_an_empty_one_is_unset() {
    use std::os::unix::ffi::OsStrExt;
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["ls"]);
    command.env("LEASEHOLD_URL", std::ffi::OsStr::from_bytes(b"file:///\xff"));
    crate::support::Started::new(command).end().expect(64).says("LEASEHOLD_URL");
    let mut command = sandbox.leasehold(&["ls"]);
    command.env("LEASEHOLD_URL", "");
    crate::support::Started::new(command).end().expect(0);
}

#[test]
fn help_and_version_succeed_and_explain() {
    let sandbox = Sandbox::new();
    for (args, texts) in [
        (&["--help"][..], &["Exit codes:", "75", "Examples:", "LEASEHOLD_URL"][..]),
        (&["-h"], &["Examples:"]),
        (&["help"], &["Examples:"]),
        (&["run", "--help"], &["LEASEHOLD_FENCE", "Ctrl-C", "--min-hold", "redis://", "Examples:"]),
        (&["run", "-h"], &["--no-wait", "Examples:"]),
        (&["show", "--help"], &["--json", "jq", "Examples:"]),
        (&["ls", "--help"], &["--json", "Examples:"]),
        (&["watch", "--help"], &["--json", "Examples:"]),
        (&["break", "--help"], &["--yes", "fence", "Examples:"]),
        (&["revoke", "--help"], &["--reason", "--on-revoke", "Examples:"]),
        (&["completions", "--help"], &["bash", "Examples:"]),
    ] {
        let ended = sandbox.end(args).expect(0);
        assert_eq!(ended.err, "");
        for text in texts {
            assert!(ended.out.contains(text), "no `{text}` in {args:?}: {}", ended.out);
        }
        assert!(!ended.out.contains('\x1b'), "no colours without a terminal");
    }
    let version = sandbox.end(&["--version"]).expect(0).out;
    assert_eq!(version.trim(), format!("leasehold {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_are_scripts_that_shells_accept() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sandbox.end(&["completions", shell]).expect(0).out;
        assert!(script.contains("leasehold") && script.contains("no-wait"), "{shell}");
    }
    let mut bash =
        sandbox.sh("leasehold completions bash >script && bash -c '. ./script && complete -p leasehold'");
    bash.env_remove("LEASEHOLD_URL");
    crate::support::Started::new(bash).end().expect(0);
}

#[test]
fn likely_mistakes_are_answered_with_the_right_form() {
    let sandbox = Sandbox::new();
    for (args, text) in [
        (&["run", "nightly", "echo", "hi"][..], "the command comes after --"),
        (&["elect", "boss", "echo", "hi"], "the command comes after --"),
        (&["lock", "n"], "leasehold run NAME -- COMMAND"),
        (&["ls", "--store", "127.0.0.1:6379"], "did you mean redis://127.0.0.1:6379?"),
        (&["ls", "--store", "reddis://h"], "did you mean redis://?"),
        (&["elect"], "elect [OPTIONS] <NAME> -- <COMMAND>"),
    ] {
        sandbox.end(args).expect(64).says(text);
    }
    let wrong_flag = sandbox.end(&["run", "--nonsense", "job", "--", "true"]).expect(64);
    assert!(!wrong_flag.err.contains("comes after"), "{wrong_flag:?}");
}

#[test]
fn ttl_out_of_range_is_reported_in_hours() {
    let Some(redis) = crate::support::Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    sandbox
        .run(&["--ttl", "48h", "job"], "true")
        .expect(64)
        .says("48h is out of range: redis takes")
        .says("to 24h");
}
