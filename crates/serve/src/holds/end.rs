//! How a hold ended, and what is answered after that.

use crate::problem::{Code, Problem};

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    /// For this cause.
    Lost(&'static str),
}

impl End {
    /// Returns what a client is told that asks for more than the release.
    pub(super) fn problem(self) -> Problem {
        match self {
            End::Released => {
                let text = "the hold was released: to lock again, choose a new id";
                Problem::new(Code::Released, text)
            }
            End::Lost(cause) => {
                let text = format!(
                    "the lock is lost ({cause}), and another client may hold it now: stop the work under it; to lock \
                     again, choose a new id"
                );
                Problem::new(Code::Lost, text)
            }
        }
    }
}
