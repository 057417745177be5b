//! The end of a hold, and the answer after that.

use crate::problem::{Code, Problem};

/// The end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    /// For this cause.
    Lost(&'static str),
}

impl End {
    /// Returns the answer to a client that asks for more than the release.
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
