//! `acquire`: holds a lock for a section of a script, by a keeper that stays behind.
//!
//! Two processes run this command. The one that the shell has started only starts the keeper, waits for its
//! report, and prints what the shell needs. The keeper opens the store, takes the lock and keeps it.
//!
//! Ground rules: the keeper is known to the shell before this command succeeds, or the lock is released. There is one
//! exception: if this process is killed by KILL between the report of the keeper and the print, the keeper holds the
//! lock until the script has ended, and nobody can release it. The script sees that failure. What makes `eval` fail,
//! too, is printed by `main`, which also knows of the failures before this command.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use leasehold::Resource;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::exit::{Exit, Problem};
use crate::output::json;
use crate::output::status::LockState;
use crate::process::section::{self, ask_to_release};
use crate::request::args::hold::AcquireArgs;
use crate::request::keepers::{KEEPER_VARIABLE, KeeperAddress, Keepers};
use crate::request::reentry::{OWNER_VARIABLE, Tags};
use crate::system::caller::{self, NoCaller};
use crate::system::descriptors;
use crate::system::keeper_socket::SocketAddress;
use crate::system::processes::KEEPER_NAME;
use crate::system::signals::Signals;
use crate::system::warden::own_program;

/// The report of the keeper: what the shell needs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Granted {
    /// The variables to set, and with `None` to unset.
    pub(crate) variables: Vec<(String, Option<String>)>,
    pub(crate) locks: Vec<LockState>,
    /// The ids of the processes for which it holds them.
    pub(crate) callers: Vec<i32>,
    /// The tags of the claims that it keeps.
    pub(crate) tags: Vec<String>,
    /// The name of its socket.
    pub(crate) socket: String,
    /// The path by which the shell opens the descriptor that the lock follows, if it follows one.
    pub(crate) descriptor: Option<String>,
}

/// Runs `leasehold acquire`.
///
/// # Errors
/// Those of `run`, without a command; usage, for a process that is not an ancestor.
pub(crate) async fn acquire(args: AcquireArgs) -> Result<Exit, Problem> {
    let cannot_start = |error| Problem::new(Exit::NotStarted, format!("cannot start a keeper: {error}"));
    let opened = caller::open(args.pid.and_then(Pid::from_raw));
    let handle = opened.map_err(|problem| no_caller(&args, problem))?;
    let mut signals = Signals::listen().map_err(cannot_start)?;
    let (reader, writer) = net::UnixStream::pair().map_err(cannot_start)?;
    let mut command = Command::new(own_program().map_err(cannot_start)?);
    command.arg0(KEEPER_NAME).args(std::env::args_os().skip(1));
    command.stdin(handle).stdout(OwnedFd::from(writer)).stderr(Stdio::inherit());
    let mut keeper = command.spawn().map_err(cannot_start)?;
    // With it goes the end of the connection that the keeper writes to.
    drop(command);
    reader.set_nonblocking(true).map_err(cannot_start)?;
    let mut reader = UnixStream::from_std(reader).map_err(cannot_start)?;
    let mut report = Vec::new();
    let mut asked = None;
    loop {
        tokio::select! {
            biased;
            signal = signals.sent(), if asked.is_none() => {
                asked = Some(Ok(Exit::by(signal)));
                withdraw(&keeper, &mut reader).await;
            }
            () = descriptors::unread_stdout(), if asked.is_none() => {
                // The script has ended, and only the copy of it lives that waits for this command.
                asked = Some(Err(Problem::new(Exit::Output, UNREAD)));
                withdraw(&keeper, &mut reader).await;
            }
            read = reader.read_buf(&mut report) => if read.map_err(cannot_start)? == 0 { break },
        }
        if report.ends_with(b"\n") {
            break;
        }
    }
    let granted: Option<Granted> = serde_json::from_slice(&report).ok();
    match (granted, asked) {
        (Some(granted), None) => finish(&args, granted).await,
        (Some(granted), Some(ended)) => {
            drop(ask_to_release(&SocketAddress::here(granted.socket)).await);
            ended
        }
        (None, Some(ended)) => {
            let _ = keeper.wait();
            ended
        }
        // It has printed the reason.
        (None, None) => {
            let status = keeper.wait().map_err(cannot_start)?;
            let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
            code.map_or_else(
                || Err(Problem::new(Exit::Unavailable, "the keeper was killed")),
                |code| Ok(Exit::Command(code)),
            )
        }
    }
}

/// Asks a keeper to end that has not reported yet. A report that is under way is still read.
async fn withdraw(keeper: &Child, report: &mut UnixStream) {
    // It is not reaped yet, so the id is its own.
    let _ = kill_process(Pid::from_child(keeper), Signal::TERM);
    // A script that ignores TERM has a keeper that ignores TERM, too, but sees this.
    let _ = report.shutdown().await;
}

/// Prints what the shell needs, or releases the lock.
async fn finish(args: &AcquireArgs, mut granted: Granted) -> Result<Exit, Problem> {
    let socket = SocketAddress::here(granted.socket);
    let keeper = KeeperAddress {
        socket: socket.clone(),
        callers: std::mem::take(&mut granted.callers),
        tags: std::mem::take(&mut granted.tags),
        lock: args.name.clone(),
    };
    let (living, over) = section::living().await;
    // A claim that nobody keeps lets nobody in, even while the store still has it.
    for (name, value) in &mut granted.variables {
        if let (OWNER_VARIABLE, Some(tags)) = (name.as_str(), value) {
            *tags = Tags::read(tags).without(&over).with(None);
        }
    }
    let keepers = Keepers::new(living).and(keeper).to_string();
    let mut out = io::stdout().lock();
    let printed = match args.json {
        true => {
            let all = granted.variables.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
            let variables = all.chain([(KEEPER_VARIABLE, Some(&*keepers))]).collect();
            let locks = &granted.locks;
            json::line(&mut out, &AcquiredShape { name: &args.name, locks, keeper: &keepers, variables })
        }
        false => {
            let opening = args.fd.zip(granted.descriptor.as_deref());
            let script = script(&granted.variables, &keepers, opening);
            out.write_all(script.as_bytes()).and_then(|()| out.flush())
        }
    };
    if let Err(error) = printed {
        drop(ask_to_release(&socket).await);
        // A reader that has gone is a failure here: nobody knows of the lock.
        return Err(Problem::new(
            Exit::Output,
            format!("cannot write the output: {error}; the lock was released"),
        ));
    }
    Ok(Exit::Done)
}

/// The output of `acquire --json`.
#[derive(Debug, Serialize)]
struct AcquiredShape<'a> {
    name: &'a Resource,
    locks: &'a [LockState],
    /// The value for `LEASEHOLD_KEEPER`.
    keeper: &'a str,
    /// All variables of the section, and null for those to unset.
    variables: BTreeMap<&'a str, Option<&'a str>>,
}

/// Returns lines that every POSIX shell understands. The last one opens a descriptor, and fails with it.
fn script(variables: &[(String, Option<String>)], keepers: &str, opening: Option<(u8, &str)>) -> String {
    let mut script = String::new();
    for (name, value) in variables {
        match value {
            Some(value) => script.push_str(&format!("{name}={}; export {name}\n", quoted(value))),
            None => script.push_str(&format!("unset {name}\n")),
        }
    }
    script.push_str(&format!("{KEEPER_VARIABLE}={}; export {KEEPER_VARIABLE}\n", quoted(keepers)));
    if let Some((fd, path)) = opening {
        script.push_str(&format!("exec {fd}>{} && echo >&{fd}\n", quoted(path)));
    }
    script
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn no_caller(args: &AcquireArgs, problem: NoCaller) -> Problem {
    match (problem, args.pid) {
        (NoCaller::Itself, _) => {
            let text = "the process of --pid is this command: inside $(...), $BASHPID is that of the substitution; \
                        write me=$BASHPID before it, and --pid $me";
            Problem::new(Exit::Usage, text)
        }
        (NoCaller::NotAnAncestor, Some(pid)) => {
            let text = format!(
                "process {pid} has not started this command: give the id of the script, as in --pid $$"
            );
            Problem::new(Exit::Usage, text)
        }
        (NoCaller::NotAnAncestor, None) => {
            Problem::new(Exit::Lost, "the process that has started this command has ended")
        }
        (NoCaller::Failed(error), _) => {
            let text = format!(
                "cannot watch the process that has started this command: {error}; use `leasehold run`"
            );
            Problem::new(Exit::Refused, text)
        }
    }
}

const UNREAD: &str = "nobody reads the output, so nobody would know of the lock: it is not taken";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_is_quoted_for_a_shell() {
        let variables = [("A".to_owned(), Some("it's $HOME `x`\n\"".to_owned())), ("B".to_owned(), None)];
        let expected =
            "A='it'\\''s $HOME `x`\n\"'; export A\nunset B\nLEASEHOLD_KEEPER='k'; export LEASEHOLD_KEEPER\n";
        assert_eq!(script(&variables, "k", None), expected);
        let opening = script(&variables, "k", Some((9, "/proc/7/fd/8")));
        assert_eq!(opening, format!("{expected}exec 9>'/proc/7/fd/8' && echo >&9\n"));
    }
}
