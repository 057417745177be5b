//! `man`: the man pages and the reference in Markdown, which are made from the declarations of the flags.

use crate::support::Sandbox;

#[test]
fn each_command_has_a_man_page() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path("man/man1");
    sandbox.end(&["man", "--dir", dir.to_str().unwrap()]).expect(0);
    let page = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    let run = page("leasehold-run.1");
    for part in
        [".TH leasehold-run 1", "\\fBleasehold run\\fR", "\\-\\-min\\-hold", "LEASEHOLD_FENCE", "Ctrl\\-C"]
    {
        assert!(run.contains(part), "{part} is missing in {run}");
    }
    assert!(page("leasehold.1").contains("leasehold\\-run(1)"));
    assert!(page("leasehold-redlock-rearm.1").contains("Re\\-enable"));
    assert!(!dir.join("leasehold-man.1").exists(), "a hidden command has no page");
}

#[test]
fn the_reference_has_the_help_of_each_command() {
    let sandbox = Sandbox::new();
    let reference = sandbox.end(&["man", "--markdown"]).expect(0).out;
    let help = sandbox.end(&["--help"]).expect(0).out;
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names =
        commands.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    for name in names.filter(|name| *name != "help") {
        assert!(reference.contains(&format!("\n## `leasehold {name}`\n")), "{name} is missing");
    }
    let run = sandbox.end(&["run", "--help"]).expect(0).out;
    let first = run.lines().find(|line| line.starts_with("Usage:")).unwrap();
    assert!(reference.contains(first), "{first}");
    assert!(!help.contains("  man "), "the command is for packagers, and is hidden: {help}");
}

#[test]
fn a_directory_that_cannot_be_written_is_74() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("file");
    std::fs::write(&file, "").unwrap();
    sandbox.end(&["man", "--dir", file.to_str().unwrap()]).expect(74).says("cannot be written");
    sandbox.end(&["man"]).expect(64).says("--dir");
}
