//! Actions of an operator on a lock that was seen, and their consequences.
//!
//! Ground rules: only the claims that were shown are ended, and no others: a holder that acquired the lock
//! after the look keeps it. One to whom a claim was handed over meanwhile has that claim.

use leasehold::backend::Liveness;
use leasehold::{BreakOutcome, ClaimInfo, Client, Error, Profile, Resource};

/// The claims that were broken.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Broken {
    /// Those that were ended, in the order of the request.
    pub claims: Vec<ClaimInfo>,
    /// Other locks that ended with the connection of a holder.
    pub also_released: Vec<Resource>,
    /// The failure that ended the work, if one did.
    pub failure: Option<Error>,
}

/// Ends these claims of a lock, one after the other. Stops at the first failure.
///
/// Waiters are ended first, from the back of the queue, if the caller puts them first: otherwise the end of a
/// holder would grant the lock to a waiter that is about to be ended.
pub async fn break_claims(client: &Client, name: &str, claims: &[ClaimInfo]) -> Broken {
    let mut broken = Broken::default();
    for info in claims {
        match client.break_claim(name, info).await {
            Ok(BreakOutcome::Ended { also_released }) => {
                broken.claims.push(info.clone());
                // Other readers of the same lock may be among them.
                broken.also_released.extend(also_released);
            }
            Ok(BreakOutcome::Gone) => {}
            Err(error) => {
                broken.failure = Some(error);
                return broken;
            }
        }
    }
    broken
}

/// Returns the consequences that a person should know before a break on such a store.
pub fn consequences_of_break(profile: &Profile) -> &'static str {
    match profile.liveness {
        Liveness::Heartbeat { .. } => BREAK_OF_A_CONNECTION,
        _ => BREAK,
    }
}

/// Returns the reason of a request to release: this text, or that none was given. A holder may see the request by its
/// reason alone.
pub fn reason_of_revoke(text: &str) -> &str {
    if text.trim().is_empty() { "no reason given" } else { text }
}

/// The consequences that a person should know before a revocation.
pub const CONSEQUENCES_OF_REVOKE: &str = "\
The holders are asked, and nothing is taken from them. A holder that does not
listen for requests (run --on-revoke) continues, and is not reported.";

const BREAK: &str = "\
A holder notices the loss at its next renewal, at most a third of its ttl
later. Until then the old holder and the next one both act; only a resource
that checks the fence can distinguish them.";

const BREAK_OF_A_CONNECTION: &str = "\
This ends the holder's connection to the server, and with it all other locks
that are held on the same connection. The holder notices the loss at once, or
at its next sign of life; until then the old holder and the next one both act.";
