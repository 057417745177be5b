//! The manifests, by the schemas of Kubernetes, and their commands, by the command itself.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use leasehold_testkit::{peers, require};

use crate::{leasehold, packaging, run, succeed, unknown_options};

/// The first version with sidecars that need no feature gate, and a recent one.
const VERSIONS: [&str; 2] = ["1.29", "1.34"];

/// Checks each object of the files named, strictly: a field that the schema does not know is a mistake.
const VALIDATE: &str = "
import sys, yaml, kubernetes_validate
version, *files = sys.argv[1:]
for file in files:
    for object in yaml.safe_load_all(open(file)):
        kubernetes_validate.validate(object, version, strict=True)
        print(object['kind'], object['metadata']['name'])
";

/// Prints the command of the first container of the first object with pods, one word a line.
const COMMAND: &str = "
import sys, yaml
def pods(value):
    if isinstance(value, dict):
        if 'containers' in value:
            yield value
        for one in value.values():
            yield from pods(one)
pod = next(pods(yaml.safe_load(open(sys.argv[1]))))
container = pod['containers'][0]
print('\\n'.join(container['command'] + container.get('args', [])))
";

fn python(script: &str) -> Option<Command> {
    let mut python = require::or_skip("kubernetes", peers::python(&["kubernetes-validate>=1.34"]))?;
    python.args(["-c", script]);
    Some(python)
}

fn manifests() -> Vec<PathBuf> {
    let entries = fs::read_dir(packaging().join("kubernetes")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn manifests_match_the_schemas() {
    for version in VERSIONS {
        let Some(mut python) = python(VALIDATE) else { return };
        let printed = succeed(python.arg(version).args(manifests()));
        for object in
            ["CronJob nightly-report", "Deployment scheduler", "Deployment worker", "Service worker"]
        {
            assert!(printed.contains(object), "{printed}");
        }
    }
}

#[test]
fn misspelt_field_does_not_match() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(packaging().join("kubernetes/cronjob.yaml")).unwrap();
    let wrong = folder.path().join("wrong.yaml");
    fs::write(&wrong, text.replace("startingDeadlineSeconds:", "startingDeadline:")).unwrap();
    let Some(mut python) = python(VALIDATE) else { return };
    let (is_success, printed) = run(python.arg(VERSIONS[0]).arg(wrong));
    assert!(!is_success && printed.contains("startingDeadline"), "{printed}");
}

/// Returns the command of a manifest with a program of the machine in place of its own, and a store of the test.
fn command(file: &str, script: &str, folder: &Path) -> Option<Command> {
    let printed = succeed(python(COMMAND)?.arg(packaging().join("kubernetes").join(file)));
    let words: Vec<&str> = printed.lines().collect();
    let (end, options) = words.split_last().unwrap();
    assert!(end.starts_with("/usr/local/bin/") && options[0] == "leasehold", "{words:?}");
    let mut command = Command::new(leasehold());
    // The tests have no time for the minimum hold.
    command.args(options[1..].iter().filter(|word| !word.starts_with("--min-hold")));
    command.args(["sh", "-c", script]);
    command.env("LEASEHOLD_URL", format!("file://{}/store", folder.display()));
    Some(command)
}

#[test]
fn cron_job_succeeds_where_another_cluster_does_it() {
    let folder = tempfile::tempdir().unwrap();
    let start = |script| command("cronjob.yaml", script, folder.path());
    let (first, second) = (start("echo held; read line; exit 3"), start("echo a second one"));
    let (Some(mut first), Some(mut second)) = (first, second) else { return };
    let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let printed = succeed(&mut second);
    assert!(!printed.contains("a second one"), "{printed}");
    drop(first.stdin.take());
    // The job's own failure is one.
    assert_eq!(first.wait().unwrap().code(), Some(3));
}

#[test]
fn leader_starts_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut leader) = command("leader.yaml", "echo leads $LEASEHOLD_NAME", folder.path()) else {
        return;
    };
    let printed = succeed(&mut leader);
    assert!(printed.contains("leads scheduler"), "{printed}");
}

#[test]
fn sidecar_has_options_that_the_server_knows() {
    let text = fs::read_to_string(packaging().join("kubernetes/sidecar.yaml")).unwrap();
    let (_, arguments) = text.split_once("            - serve\n").unwrap();
    let (arguments, _) = arguments.split_once("          env:").unwrap();
    assert!(arguments.contains("--listen="), "{arguments}");
    assert_eq!(unknown_options(arguments), Vec::<&str>::new());
}
