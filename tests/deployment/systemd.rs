//! The units, by `systemd-analyze`: it reads them as the service manager does, which need not run.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use leasehold_testkit::{require, write_executable};

use crate::{leasehold, packaging, run, unknown_options};

/// The exposure that `systemd-analyze security` may find, in tenths: it calls less than 2.0 "OK", and a service
/// without any of these settings has 9.6.
const EXPOSURE: &str = "17";

const UNITS: &[(&str, &str)] = &[
    ("leasehold-run@.service", "leasehold-run@nightly.service"),
    ("leasehold-run@.timer", "leasehold-run@nightly.timer"),
    ("leasehold-elect@.service", "leasehold-elect@scheduler.service"),
    ("leasehold-serve.service", "leasehold-serve.service"),
];

/// Writes the units into a folder, as instances, which start the command that was built here.
fn lay_out(folder: &Path, change: impl Fn(&str) -> String) -> io::Result<()> {
    for (file, instance) in UNITS {
        let text = fs::read_to_string(packaging().join("systemd").join(file))?;
        let text = text.replace("/usr/bin/leasehold", &leasehold().display().to_string());
        fs::write(folder.join(instance), change(&text))?;
    }
    Ok(())
}

fn analyze() -> Option<Command> {
    let program = require::or_skip("systemd", require::program("systemd-analyze", "systemd"))?;
    let mut command = Command::new(program);
    command.env("SYSTEMD_COLORS", "0").arg("--no-pager");
    Some(command)
}

/// Returns what the service manager has against the units.
fn verify(change: impl Fn(&str) -> String) -> Option<String> {
    let mut command = analyze()?;
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path(), change).unwrap();
    command.args(["verify", "--man=no"]).args(UNITS.iter().map(|(_, instance)| folder.path().join(instance)));
    let (is_success, printed) = run(&mut command);
    // Only units of ours count: the machine's own may have mistakes, too.
    let ours: String = printed.lines().filter(|line| line.contains("leasehold")).collect();
    assert!(is_success || !ours.is_empty(), "{command:?}\n{printed}");
    Some(ours)
}

#[test]
fn service_manager_accepts_the_units() {
    let Some(complaints) = verify(str::to_owned) else { return };
    assert_eq!(complaints, "");
}

#[test]
fn service_manager_refuses_a_misspelt_setting() {
    let Some(complaints) = verify(|text| text.replace("KillMode=", "KilMode=")) else { return };
    assert!(complaints.contains("KilMode"), "{complaints}");
}

#[test]
fn services_are_hardened() {
    let Some(_) = analyze() else { return };
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path(), str::to_owned).unwrap();
    for (_, instance) in UNITS.iter().filter(|(file, _)| file.ends_with(".service")) {
        let Some(mut command) = analyze() else { return };
        command
            .args(["security", "--offline=yes", "--threshold", EXPOSURE])
            .arg(folder.path().join(instance));
        let (is_success, printed) = run(&mut command);
        assert!(is_success, "{printed}");
    }
}

/// A second start on another machine has to find the lock taken, so it comes before the minimum hold is over.
#[test]
fn timer_is_exact_and_does_not_repeat_a_missed_job() {
    let read = |file: &str| fs::read_to_string(packaging().join("systemd").join(file)).unwrap();
    let timer = read("leasehold-run@.timer");
    assert!(timer.contains("\nAccuracySec=1s\n") && timer.contains("\nPersistent=no\n"), "{timer}");
    assert!(!timer.contains("RandomizedDelaySec"), "{timer}");
    let service = read("leasehold-run@.service");
    assert!(
        service.contains("--no-wait --conflict-exit-code 197 --min-hold 50s")
            && service.contains("\nSuccessExitStatus=197 143\n"),
        "{service}"
    );
}

/// Starts the command of a unit as the service manager does, without it.
fn start(file: &str, jobs: &Path, url: &str) -> Command {
    let text = fs::read_to_string(packaging().join("systemd").join(file)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/leasehold ")).unwrap();
    let line = line.replace("/etc/leasehold", &jobs.display().to_string());
    let mut command = Command::new(leasehold());
    for word in line.replace("%i", "nightly").replace("%H", "here").replace("50s", "0s").split(' ') {
        command.arg(word);
    }
    command.env("LEASEHOLD_URL", url);
    command
}

#[test]
fn units_start_the_job_of_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/store", folder.path().display());
    for (file, kind) in [("leasehold-run@.service", "jobs"), ("leasehold-elect@.service", "services")] {
        let job = folder.path().join(kind).join("nightly");
        fs::create_dir(job.parent().unwrap()).unwrap();
        write_executable(&job, "#!/bin/sh\necho $LEASEHOLD_NAME, fence $LEASEHOLD_FENCE\n").unwrap();
        let printed = crate::succeed(&mut start(file, folder.path(), &url));
        assert!(printed.starts_with("nightly, fence 0"), "{file}: {printed}");
    }
}

#[test]
fn unit_distinguishes_a_taken_lock_from_a_job_that_fails() {
    let unit = fs::read_to_string(packaging().join("systemd/leasehold-run@.service")).unwrap();
    let successes = unit.lines().find_map(|line| line.strip_prefix("SuccessExitStatus=")).unwrap();
    let is_success = |code: i32| successes.split(' ').any(|success| success == code.to_string());
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/store", folder.path().display());
    let job = folder.path().join("jobs/nightly");
    fs::create_dir(job.parent().unwrap()).unwrap();
    // The first start fails with the code that leasehold has for a lock that is taken; inside it the second one
    // finds the lock taken.
    let command = start("leasehold-run@.service", folder.path(), &url);
    let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
    let second = format!("LEASEHOLD_OWNER= {} {}", leasehold().display(), words.join(" "));
    write_executable(&job, format!("#!/bin/sh\n{second}\necho second $?\nexit 75\n")).unwrap();
    let output = start("leasehold-run@.service", folder.path(), &url).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let second: i32 = printed.trim().strip_prefix("second ").unwrap().parse().unwrap();
    assert!(is_success(second), "{second} of {successes}");
    assert!(!is_success(output.status.code().unwrap()), "{output:?}");
    assert_eq!(output.status.code(), Some(75));
}

#[test]
fn server_has_the_options_of_its_unit() {
    let unit = fs::read_to_string(packaging().join("systemd/leasehold-serve.service")).unwrap();
    let line = unit.lines().find(|line| line.starts_with("ExecStart=/usr/bin/leasehold serve ")).unwrap();
    assert_eq!(unknown_options(line), Vec::<&str>::new());
    assert_eq!(unknown_options("--no-such-option --listen"), ["--no-such-option"]);
}

/// A server that is killed frees locks that its answers have called valid, if they live as long as its process.
#[test]
fn server_is_not_killed_before_its_locks_have_ended() {
    let unit = fs::read_to_string(packaging().join("systemd/leasehold-serve.service")).unwrap();
    let limit = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    let help = crate::succeed(Command::new(leasehold()).args(["serve", "--help"]));
    let default_of = |option: &str| {
        let described = help.split(&format!("--{option} <DURATION>")).nth(1).unwrap();
        described.split("[default: ").nth(1).and_then(|rest| rest.split(']').next()).unwrap()
    };
    let needed = seconds(default_of("grace")) + seconds(default_of("max-ttl"));
    assert!(seconds(limit) > needed, "{limit} is not more than {needed} s");
}

/// Returns the seconds of a time such as `30s`, `65min` or `1h`.
fn seconds(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap());
    let unit = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        other => panic!("{other} in {text}"),
    };
    number.parse::<u64>().unwrap() * unit
}
