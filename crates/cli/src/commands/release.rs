//! `release`: ends the section that `acquire` has begun.
//!
//! Ground rules: only an answer of the keeper proves that the lock was held until now. A keeper that is gone was
//! killed, so the lock was lost, unless an outer section of the same script has the lock, too.

use std::io;

use crate::exit::{Exit, Problem};
use crate::output::text::visible_name;
use crate::process::keeper_lines::Answer;
use crate::process::section::ask_to_release;
use crate::request::args::hold::ReleaseArgs;
use crate::request::keepers::{KeeperAddress, Keepers};
use crate::system::caller;
use crate::system::keeper_socket::{is_gone, may_listen};

/// Runs `leasehold release`.
///
/// # Errors
/// Usage, if it is not known which lock is meant; lost, if the lock was lost before.
pub(crate) async fn release(args: ReleaseArgs) -> Result<Exit, Problem> {
    let keepers = Keepers::inherited();
    let callers: Vec<_> = caller::scripts().iter().map(|pid| pid.as_raw_pid()).collect();
    let meant = keepers.meant(args.name.as_ref(), &callers)?;
    let mut living = Vec::new();
    for keeper in &meant {
        if may_listen(&keeper.socket).await {
            living.push(*keeper);
        }
    }
    if let (None, [_, _, ..]) = (&args.name, &*living) {
        let names: Vec<_> = living.iter().rev().map(|keeper| visible_name(keeper.lock.as_str())).collect();
        let text = format!("several locks are held: name the one to release: {}", names.join(", "));
        return Err(Problem::new(Exit::Usage, text));
    }
    // The newest one that is there.
    for keeper in living {
        match ask_to_release(&keeper.socket).await {
            Err(error) if is_gone(&error) => {}
            answer => return ended(keeper, answer),
        }
    }
    Err(lost(meant[0], "its keeper is gone; it was released before, or the keeper was killed"))
}

fn ended(keeper: &KeeperAddress, answer: io::Result<Answer>) -> Result<Exit, Problem> {
    let name = visible_name(keeper.lock.as_str());
    match answer {
        Ok(Answer::Released) => Ok(Exit::Done),
        Ok(Answer::Lost) => Err(lost(keeper, "the section may not have been alone")),
        Ok(Answer::Inside) => {
            let text = format!(
                "{name} cannot be released from inside a `leasehold run` that relies on it, or while an inner section \
                 of the same script does: release it after that has ended"
            );
            Err(Problem::new(Exit::Usage, text))
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let text = format!(
                "the keeper of {name} does not answer: it is stopped, or hangs; the lock may be held"
            );
            Err(Problem::new(Exit::Unavailable, text))
        }
        Err(error) => {
            let text = format!("cannot ask the keeper of {name}: {error}; the lock may be held");
            Err(Problem::new(Exit::Unavailable, text))
        }
    }
}

fn lost(keeper: &KeeperAddress, why: &str) -> Problem {
    let name = visible_name(keeper.lock.as_str());
    Problem::new(Exit::Lost, format!("{name} was lost before the release: {why}"))
}
