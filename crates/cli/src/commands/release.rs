//! `release`: ends the section that `acquire` has begun.
//!
//! Ground rules: only an answer of the keeper proves that the lock was held until now. A keeper that is gone was
//! killed, so the lock was lost.

use std::io;

use crate::exit::{Exit, Problem};
use crate::output::text::visible;
use crate::process::section::{Answer, ask_to_release, is_gone};
use crate::request::args::hold::ReleaseArgs;
use crate::request::keepers::Keepers;
use crate::system::caller;

/// Runs `leasehold release`.
///
/// # Errors
/// Usage, if it is not known which lock is meant; lost, if the lock was lost before.
pub(crate) async fn release(args: ReleaseArgs) -> Result<Exit, Problem> {
    let keepers = Keepers::inherited();
    let callers: Vec<_> = caller::scripts().iter().map(|pid| pid.as_raw_pid()).collect();
    let keeper = keepers.find(args.name.as_ref(), &callers)?;
    let name = visible(keeper.lock.as_str());
    let lost =
        |why: &str| Err(Problem::new(Exit::Lost, format!("{name} was lost before the release: {why}")));
    match ask_to_release(&keeper.socket).await {
        Ok(Answer::Released) => Ok(Exit::Done),
        Ok(Answer::Lost) => lost("the section may not have been alone"),
        Ok(Answer::Inside) => {
            let text = format!(
                "{name} cannot be released from inside a `leasehold run` that relies on it: release it after that \
                 has ended"
            );
            Err(Problem::new(Exit::Usage, text))
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let text = format!(
                "the keeper of {name} does not answer: it is stopped, or hangs; the lock may be held"
            );
            Err(Problem::new(Exit::Unavailable, text))
        }
        Err(error) if is_gone(&error) => {
            lost("its keeper is gone; it was released before, or the keeper was killed")
        }
        Err(error) => {
            let text = format!("cannot ask the keeper of {name}: {error}; the lock may be held");
            Err(Problem::new(Exit::Unavailable, text))
        }
    }
}
