//! The `leasehold` command.
//!
//! ```text
//!  args (as written) ─▶ request, store (as types) ─▶ run, elect ─▶ job, hook ─▶ child, warden, terminal
//!                                                 └▶ show, list, deadlocks, watch, brk, doctor, schema, sweep ─▶ describe, json, table
//! ```
//!
//! Ground rules: only `leasehold`'s public API is used. Exit codes come from `exit` alone, text for
//! stderr goes through `stderr`, and foreign text is made visible before it reaches a terminal.

#![forbid(unsafe_code)]

mod args;
mod brk;
mod child;
mod deadlocks;
mod describe;
mod doctor;
mod elect;
mod environment;
mod exit;
mod help_text;
mod hook;
mod job;
mod json;
mod list;
mod log;
mod orphans;
mod paint;
mod processes;
mod program;
mod progress;
mod redlock;
mod reentry;
mod request;
mod revoke;
mod run;
mod schema;
mod show;
mod signals;
mod stderr;
mod store;
mod sweep;
mod table;
mod terminal;
mod text;
mod warden;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use args::{Args, CompletionsArgs, RedlockVerb, Verb};
use exit::{Exit, Problem};
use rustix::process::Signal;

fn main() -> ExitCode {
    if warden::is_called_for() {
        return warden::serve().into();
    }
    let exit = match Args::try_parse() {
        Ok(args) => log::start(args.verbose).and_then(|()| obey(args.verb)),
        Err(error) => answer(&error),
    };
    let exit = exit.unwrap_or_else(|problem| {
        if !problem.is_silent() {
            stderr::complain(&problem.to_string());
        }
        problem.exit
    });
    if exit == Exit::Interrupted {
        // This returns only if the signal has no effect; then the exit code says the same.
        let _ = signal_hook::low_level::emulate_default_handler(Signal::INT.as_raw());
    }
    exit.code().into()
}

fn obey(verb: Verb) -> Result<Exit, Problem> {
    if let Verb::Completions(args) = verb {
        return completions(&args);
    }
    // One thread starts the command and receives the signals; nothing here computes.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Problem::new(Exit::Unavailable, format!("cannot start: {error}")))?;
    let exit = runtime.block_on(async {
        let exit = match verb {
            Verb::Run(args) => run::run(*args).await,
            Verb::Show(args) => show::show(args).await,
            Verb::Ls(args) if args.deadlocks => deadlocks::deadlocks(args).await,
            Verb::Ls(args) => list::list(args).await,
            Verb::Watch(args) => watch::watch(args).await,
            Verb::Revoke(args) => revoke::revoke(args).await,
            Verb::Break(args) => brk::break_lock(args).await,
            Verb::Elect(args) => elect::elect(*args).await,
            Verb::Doctor(args) => doctor::doctor(args).await,
            Verb::Schema(args) => schema::schema(&args),
            Verb::Sweep(args) => sweep::sweep(args).await,
            Verb::Redlock(RedlockVerb::Rearm(args)) => redlock::rearm(args).await,
            Verb::Completions(args) => completions(&args),
        };
        // The lines of the log come before the error that ends the program.
        if let Some(voice) = stderr::Stderr::started() {
            voice.settle().await;
        }
        exit
    });
    // A thread of the store may be blocked in the kernel; every release was waited for.
    runtime.shutdown_background();
    exit
}

fn completions(args: &CompletionsArgs) -> Result<Exit, Problem> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "leasehold", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(Exit::Done)
}

/// Answers an error of the command line. Help and version go to stdout and are not errors; everything
/// else is one of usage.
fn answer(error: &clap::Error) -> Result<Exit, Problem> {
    if !error.use_stderr() {
        error.print()?;
        return Ok(Exit::Done);
    }
    // Clap repeats the arguments, and one of them may be a URL in the wrong place.
    let plain = error.render().to_string();
    let hint = hint(error).map(|hint| format!("\ntip: {hint}")).unwrap_or_default();
    let clean = format!("{}{hint}", store::redacted(plain.trim_end()));
    if clean == plain.trim_end() {
        drop(error.print());
    } else {
        drop(writeln!(std::io::stderr().lock(), "{}", clean.trim_end()));
    }
    Ok(Exit::Usage)
}

/// Returns the probable intention, if the command line shows it.
fn hint(error: &clap::Error) -> Option<&'static str> {
    let holds = matches!(std::env::args_os().nth(1)?.to_str()?, "run" | "elect");
    let is_word = || match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) => !word.starts_with('-'),
        _ => false,
    };
    match error.kind() {
        ErrorKind::UnknownArgument if holds && is_word() => {
            Some("the command comes after --, as in: leasehold run NAME -- COMMAND ARG")
        }
        ErrorKind::InvalidSubcommand => {
            Some("to hold a lock while a command runs: leasehold run NAME -- COMMAND ARG")
        }
        _ => None,
    }
}
