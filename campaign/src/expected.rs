//! The expected outcome of each store under each fault, written before any run.
//!
//! Ground rules: an expectation is changed only with its reason, never to fit a run. What a store's page
//! promises has to hold here; what breaks is what the page says.

mod table;
mod tests_elsewhere;

pub use table::expected;
pub use tests_elsewhere::{Existing, existing};

/// The expected outcome of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing is violated.
    Holds,
    /// Two holders may be valid at one time, for this reason; the fence still protects.
    TimingBroken(&'static str),
    /// Besides, a later grant may have a lower fence, for this reason, which the protected resource refuses.
    FencesFall(&'static str),
    /// The store refuses to lock in these surroundings, for this reason.
    Refused(&'static str),
    /// The fault cannot happen to this store, for this reason.
    NotApplicable(&'static str),
    /// The fault could happen, and is not tried here, for this reason.
    NotRun(&'static str),
}

impl Expected {
    /// Returns the word of the grid.
    pub fn word(self) -> &'static str {
        match self {
            Expected::Holds => "holds",
            Expected::TimingBroken(_) => "timing",
            Expected::FencesFall(_) => "fences",
            Expected::Refused(_) => "refused",
            Expected::NotApplicable(_) => "n/a",
            Expected::NotRun(_) => "not run",
        }
    }

    /// Returns the reason, if one is needed.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Expected::Holds => None,
            Expected::TimingBroken(why)
            | Expected::FencesFall(why)
            | Expected::Refused(why)
            | Expected::NotApplicable(why)
            | Expected::NotRun(why) => Some(why),
        }
    }

    /// Returns `true` if there is something to run.
    pub fn is_run(self) -> bool {
        !matches!(self, Expected::NotApplicable(_) | Expected::NotRun(_))
    }
}
