//! The `leasehold` command.
//!
//! ```text
//!  commands ─▶ process ─▶ request ─▶ output ─▶ exit ─▶ system
//! ```
//!
//! Folders are layers, and imports point to the right: a command parses its arguments into a `request`,
//! `run` and `elect` start a `process` under the lock, and all write through `output`.
//!
//! Ground rules: only `leasehold`'s public API is used. Exit codes come from `exit` alone, text for
//! stderr goes through `output::stderr`, and foreign text is made visible before it reaches a terminal.

#![deny(unsafe_code)]

mod commands;
mod exit;
#[cfg(test)]
mod fuzz;
mod output;
mod process;
mod request;
mod system;

use std::io::Write;
use std::mem::ManuallyDrop;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use exit::{Exit, Problem};
use request::args::{Args, CompletionsArgs, RedlockVerb, Verb};
use rustix::process::{Signal, getpid};
use system::fork::{Forked, Spare};
use system::signals::Signals;

fn main() -> ExitCode {
    if system::warden::is_warden() {
        return system::warden::serve().into();
    }
    if system::starter::is_starter() {
        return system::starter::serve().into();
    }
    #[cfg(feature = "torture")]
    if commands::torture::is_worker() {
        return leasehold_torture::worker::run();
    }
    let spare = match system::fork::fork() {
        Forked::Fork(fork) => return system::warden::serve_as(fork).into(),
        Forked::Leasehold(spare) => spare,
    };
    if commands::keep::is_keeper() {
        // What the script has opened is not kept open by the process that stays behind.
        system::descriptors::close_inherited();
        commands::keep::take_name();
    }
    let parsed = Args::try_parse();
    let is_for_eval = !commands::keep::is_keeper() && is_for_eval(&parsed);
    let exit = match parsed {
        Ok(args) => output::log::start(args.verbose).and_then(|()| run_verb(args.verb, spare)),
        Err(error) => answer(&error),
    };
    let exit = exit.unwrap_or_else(|problem| {
        if !problem.is_silent() {
            output::stderr::complain(&problem.to_string());
        }
        problem.exit
    });
    if is_for_eval && exit != Exit::Done {
        // `eval` of nothing succeeds, and the script would continue without the lock.
        let _ = writeln!(std::io::stdout().lock(), "(exit {})", exit.code());
    }
    // No signal ends the first process of a container by its default; there the exit code says the same.
    if exit == Exit::Interrupted && !getpid().is_init() {
        // Where the signal has no effect, this aborts the process.
        let _ = signal_hook::low_level::emulate_default_handler(Signal::INT.as_raw());
    }
    exit.code().into()
}

/// Returns `true` if a shell evaluates the output: that of `acquire` without `--json`. A command line that cannot be
/// understood is judged by its words.
fn is_for_eval(parsed: &Result<Args, clap::Error>) -> bool {
    if let Ok(args) = parsed {
        return matches!(&args.verb, Verb::Acquire(args) if !args.json);
    }
    let (command, words) = (Args::command(), Vec::from_iter(std::env::args_os().skip(1)));
    let verb = words.iter().find(|word| command.find_subcommand(word).is_some());
    let is_json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    verb.is_some_and(|verb| verb == "acquire") && !is_json
}

/// Runs the command that was asked for, in a runtime if it needs one.
fn run_verb(verb: Verb, spare: Option<Spare>) -> Result<Exit, Problem> {
    let verb = match verb {
        Verb::Completions(args) => return completions(&args),
        Verb::Fence(verb) => return commands::fence::fence(verb),
        verb => verb,
    };
    // One thread starts the command and receives the signals; nothing here computes. A server has many clients.
    let runtime = match verb {
        #[cfg(feature = "serve")]
        Verb::Serve(_) => tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build(),
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build(),
    };
    // The runtime ends with the process, also after a panic. One that is dropped drops its tasks, and a task that
    // holds a lock for a client would release what that client relies on. The store may have been asked to do so
    // before the other tasks have ended. A thread of the store may also be blocked in the kernel.
    let runtime = ManuallyDrop::new(
        runtime.map_err(|error| Problem::new(Exit::Unavailable, format!("cannot start: {error}")))?,
    );
    let handling = SignalHandling::of(&verb);
    runtime.block_on(async {
        let exit = tokio::select! {
            // The handlers come first.
            biased;
            signal = handling.signal() => Ok(Exit::by(signal)),
            exit = carry_out(verb, spare) => exit,
        };
        // The lines of the log come before the error that ends the program.
        if let Some(stderr) = output::stderr::Stderr::started() {
            stderr.flush().await;
        }
        exit
    })
}

/// Carries the command out that was asked for.
///
/// # Errors
/// Those of the command.
async fn carry_out(verb: Verb, spare: Option<Spare>) -> Result<Exit, Problem> {
    match verb {
        Verb::Run(args) => commands::run::run(*args, spare).await,
        Verb::Acquire(args) if commands::keep::is_keeper() => commands::keep::keep(*args).await,
        Verb::Acquire(args) => commands::acquire::acquire(*args).await,
        Verb::Release(args) => commands::release::release(args).await,
        Verb::Show(args) => commands::show::show(args).await,
        Verb::Ls(args) if args.deadlocks => commands::deadlocks::deadlocks(args).await,
        Verb::Ls(args) => commands::list::list(args).await,
        #[cfg(feature = "top")]
        Verb::Top(args) => commands::top::top(args).await,
        #[cfg(feature = "serve")]
        Verb::Serve(args) => commands::serve::serve(*args).await,
        #[cfg(feature = "torture")]
        Verb::Torture(args) => commands::torture::torture(*args).await,
        Verb::Watch(args) => commands::watch::watch(args).await,
        Verb::Revoke(args) => commands::revoke::revoke(args).await,
        Verb::Break(args) => commands::break_claim::break_claim(args).await,
        Verb::Elect(args) => commands::elect::elect(*args).await,
        Verb::Doctor(args) => commands::doctor::doctor(args).await,
        Verb::Schema(args) => commands::schema::schema(&args),
        Verb::Sweep(args) => commands::sweep::sweep(args).await,
        Verb::Redlock(RedlockVerb::Rearm(args)) => commands::redlock::rearm(args).await,
        Verb::Completions(args) => completions(&args),
        Verb::Fence(verb) => commands::fence::fence(verb),
        Verb::Man(args) => commands::man::man(&args),
    }
}

/// The handling of signals by a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalHandling {
    /// The command listens to them.
    Own,
    /// They end the command.
    Default,
}

impl SignalHandling {
    fn of(verb: &Verb) -> SignalHandling {
        match verb {
            Verb::Run(_) | Verb::Acquire(_) | Verb::Elect(_) => SignalHandling::Own,
            #[cfg(feature = "serve")]
            Verb::Serve(_) => SignalHandling::Own,
            #[cfg(feature = "top")]
            Verb::Top(_) => SignalHandling::Own,
            #[cfg(feature = "torture")]
            Verb::Torture(_) => SignalHandling::Own,
            _ => SignalHandling::Default,
        }
    }

    /// Waits for a signal that ends a command as the first process of a container: to that one the kernel delivers no
    /// signal that has no handler. All others end by the default of the signal, without this.
    async fn signal(self) -> Signal {
        if self == SignalHandling::Default
            && getpid().is_init()
            && let Ok(mut signals) = Signals::listen()
        {
            return signals.sent_to_childless().await;
        }
        std::future::pending().await
    }
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
    let arguments = Vec::from_iter(std::env::args_os().skip(1));
    let clean = format!("{}{hint}", output::redact::redacted_with(plain.trim_end(), &arguments));
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
