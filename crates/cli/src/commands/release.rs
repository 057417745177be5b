//! `release`: ends the section that `acquire` has begun.
//!
//! Ground rules: only an answer of the keeper proves that the lock was held until now. A keeper that is gone was
//! killed, so the lock was lost.

use std::io;
use std::time::Duration;

use rustix::process::Pid;

use crate::exit::{Exit, Problem};
use crate::output::text::visible;
use crate::process::keeper::{Answer, ask_to_release};
use crate::request::args::hold::ReleaseArgs;
use crate::request::keepers::Keepers;
use crate::system::caller;

/// Runs `leasehold release`.
///
/// # Errors
/// Usage, if it is not known which lock is meant; lost, if the lock was lost before.
pub(crate) async fn release(args: ReleaseArgs) -> Result<Exit, Problem> {
    let keepers = Keepers::inherited();
    let caller = caller::script().map(Pid::as_raw_pid);
    let keeper = keepers.find(args.name.as_ref(), caller)?;
    let name = visible(keeper.lock.as_str());
    let lost =
        |why: &str| Err(Problem::new(Exit::Lost, format!("{name} was lost before the release: {why}")));
    match tokio::time::timeout(ANSWER_LIMIT, ask_to_release(&keeper.socket)).await {
        Err(_) => {
            let text = format!(
                "the keeper of {name} does not answer: it is stopped, or hangs; the lock may be held"
            );
            Err(Problem::new(Exit::Unavailable, text))
        }
        Ok(Ok(Answer::Released)) => Ok(Exit::Done),
        Ok(Ok(Answer::Lost)) => lost("the section may not have been alone"),
        Ok(Err(error)) if is_gone(&error) => {
            lost("its keeper is gone; it was released before, or the keeper was killed")
        }
        Ok(Err(error)) => {
            let text = format!("cannot ask the keeper of {name}: {error}; the lock may be held");
            Err(Problem::new(Exit::Unavailable, text))
        }
    }
}

/// Returns `true` if nothing listens any more, or ended before its answer.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionRefused, ConnectionReset, InvalidData, NotFound, UnexpectedEof,
    };
    matches!(
        error.kind(),
        ConnectionRefused | ConnectionReset | BrokenPipe | NotFound | UnexpectedEof | InvalidData
    )
}

/// The time for an answer: a keeper waits five seconds for its store.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
