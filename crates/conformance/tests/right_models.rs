//! The suite on a model without any fault: a right model must pass, no matter how little it promises.

#[allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "the model is part of the test")]
mod model;

use leasehold_conformance::{suite, taker};
use model::{Models, polling, remote::Remote, session, strong, weak};

mod notifying {
    use super::*;
    suite!(Models::new(strong(), None));
}

mod polling_by_lease {
    use super::*;
    suite!(Models::served(polling(), None));
}

mod polling_by_session {
    use super::*;
    suite!(Models::served(session(), None));
}

mod promising_little {
    use super::*;
    suite!(Models::served(weak(), None));
}

/// Runs the other process of the laws about crashes.
#[test]
fn taker() {
    taker::serve_if_asked(async |place| Remote::open(place));
}
