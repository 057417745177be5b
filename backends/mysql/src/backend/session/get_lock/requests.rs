//! What tasks ask a session for: each an expression of one statement, so that those of several tasks go to the
//! server together.
//!
//! Ground rules: a statement that fails may have taken some locks, and released others. What it may have taken
//! is released by another one, or the session is in doubt. While a session has locks that other clients do
//! not see yet, it has a named lock that says so. A grant writes nothing, so a server that was set read-only
//! meanwhile, because another one has taken its place, would not refuse it: each statement asks for that, and
//! the session ends.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_backend::session::Combiner;
use leasehold_core::{ClaimId, Effect, Failure};
use mysql_async::Value;

use super::{UNSHOWN, is_plain, lock_of_claim, quoted};
use crate::error::Refusal;
use crate::net::dial::{only, read};
use crate::net::session::{IS_READ_ONLY, SessionLink, read_only};
use crate::sql::schema::COUNTER;

/// A request for a claim, with the names of its locks.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// Takes a lock: 0 if another session has it, else a number for its fence, or 1.
    Lock { name: String, former: Option<String>, claim: ClaimId },
    /// Releases a lock, and what lets the row of the claim count if it is shown: 1 if the session had it.
    Unlock { name: String, former: Option<String>, claim: ClaimId, is_shown: bool },
    /// Lets the rows of claims count: 1.
    Show { claims: Vec<ClaimId> },
    /// Nothing: 0.
    Nothing,
}

impl Request {
    /// Returns the expressions of which the first is the answer, and the parameters in them, if the request is one
    /// whose text depends on nothing else.
    fn alone(&self, given: &str) -> Option<(String, Vec<Value>)> {
        let value = |name: &str| Value::from(name);
        match self {
            Request::Lock { name, former: None, .. } if is_plain(name) => Some((
                format!("CASE GET_LOCK(?, 0) WHEN 1 THEN {given} WHEN 0 THEN 0 END, "),
                vec![value(name)],
            )),
            Request::Unlock { name, former: None, is_shown: false, .. } if is_plain(name) => {
                Some(("RELEASE_LOCK(?), ".to_owned(), vec![value(name)]))
            }
            _ => None,
        }
    }

    /// Writes the expressions of which the first is the answer, and returns their number.
    fn write(&self, statement: &mut String, given: &str) -> usize {
        // What is evaluated depends on what was before: a CASE evaluates nothing in advance.
        let written = match self {
            Request::Lock { name, former: None, .. } => {
                let name = quoted(name);
                (write!(statement, "CASE GET_LOCK({name}, 0) WHEN 1 THEN {given} WHEN 0 THEN 0 END, "), 1)
            }
            // A lock with two names is taken under both or none.
            Request::Lock { name, former: Some(former), .. } => (
                write!(
                    statement,
                    "CASE GET_LOCK({name}, 0) WHEN 1 THEN CASE GET_LOCK({former}, 0) WHEN 1 THEN {given} \
                     ELSE 0 * RELEASE_LOCK({name}) END WHEN 0 THEN 0 END, ",
                    name = quoted(name),
                    former = quoted(former)
                ),
                1,
            ),
            Request::Unlock { name, former, claim, is_shown } => {
                let mut columns = 1;
                let mut written = write!(statement, "RELEASE_LOCK({}), ", quoted(name));
                if let Some(former) = former {
                    written = written.and(write!(statement, "RELEASE_LOCK({}), ", quoted(former)));
                    columns += 1;
                }
                if *is_shown {
                    written = written.and(write!(statement, "RELEASE_LOCK('{}'), ", lock_of_claim(*claim)));
                    columns += 1;
                }
                (written, columns)
            }
            Request::Show { claims } => {
                let shown = claims.iter().map(|claim| lock_of_claim(*claim)).map(|claim| {
                    format!("CASE IS_USED_LOCK('{claim}') WHEN CONNECTION_ID() THEN 1 ELSE GET_LOCK('{claim}', 0) END")
                });
                (write!(statement, "{}, ", shown.collect::<Vec<_>>().join(" * ")), 1)
            }
            Request::Nothing => (write!(statement, "0, "), 1),
        };
        // Writing into a String does not fail.
        let (Ok(()) | Err(_), columns) = written;
        columns
    }

    /// Writes the expressions that take the request back.
    fn write_undone(&self, statement: &mut String) {
        if let Request::Lock { name, former, .. } | Request::Unlock { name, former, .. } = self {
            for name in [Some(name), former.as_ref()].into_iter().flatten() {
                statement.push_str(&format!("RELEASE_LOCK({}), ", quoted(name)));
            }
        }
        if let Request::Show { .. } | Request::Unlock { is_shown: true, .. } = self {
            for claim in self.seen_or_gone() {
                statement.push_str(&format!("RELEASE_LOCK('{}'), ", lock_of_claim(*claim)));
            }
        }
    }

    /// Returns the claims whose locks are seen by others afterwards, or gone.
    fn seen_or_gone(&self) -> &[ClaimId] {
        match self {
            Request::Show { claims } => claims,
            Request::Unlock { claim, .. } => std::slice::from_ref(claim),
            Request::Lock { .. } | Request::Nothing => &[],
        }
    }
}

/// The requests of one session.
#[derive(Debug)]
pub(super) struct Requests {
    combiner: Combiner<Request, Result<Option<u64>, Failure>>,
    /// The expression that a lock which was given is answered with.
    given: &'static str,
    /// The name of the lock that says that there are locks which others do not see.
    marker: String,
    unshown: Mutex<Unshown>,
}

/// The claims whose locks other clients do not see yet.
#[derive(Debug, Default)]
struct Unshown {
    claims: HashSet<ClaimId>,
    /// `true` if the session has the lock that says so.
    is_marked: bool,
}

impl Requests {
    pub(super) fn new(session: u64, has_fences: bool) -> Requests {
        Requests {
            combiner: Combiner::default(),
            given: if has_fences { COUNTER } else { "1" },
            marker: format!("'{UNSHOWN}{session}'"),
            unshown: Mutex::default(),
        }
    }

    /// Sends a request, together with those of other tasks that wait.
    ///
    /// # Errors
    /// A failure without effect leaves nothing of the request. After one whose effect is not known, the
    /// session is in doubt.
    pub(super) async fn ask(&self, link: &SessionLink, request: Request) -> Result<Option<u64>, Failure> {
        let answer = self.combiner.ask(request, AT_ONCE, |requests| self.send(link, requests)).await;
        answer.unwrap_or_else(|| Err(Failure::unanswered("the task that sent it for others has left")))
    }

    /// Notes on the server that other clients see all locks, if that is so, and asks whether it still decides.
    pub(super) async fn rest(&self, link: &SessionLink) -> Result<(), Failure> {
        self.ask(link, Request::Nothing).await.map(drop)
    }

    async fn send(&self, link: &SessionLink, requests: Vec<Request>) -> Vec<Result<Option<u64>, Failure>> {
        let locks = requests.iter().any(|request| matches!(request, Request::Lock { .. }));
        let seen_or_gone: HashSet<ClaimId> =
            requests.iter().flat_map(Request::seen_or_gone).copied().collect();
        let (was_marked, is_marked) = {
            let unshown = self.unshown();
            (unshown.is_marked, locks || !unshown.claims.is_subset(&seen_or_gone))
        };
        // The marker is taken before the requests and released behind them, so that no lock is unseen and unsaid.
        let (begin, end) = match (was_marked, is_marked) {
            (false, true) => (format!("GET_LOCK({}, 0)", self.marker), String::from("0")),
            (true, false) => (String::from("0"), format!("RELEASE_LOCK({})", self.marker)),
            _ => (String::from("0"), String::from("0")),
        };
        let mut statement = format!("SELECT {begin}, ");
        let mut columns = vec![1];
        // The request of a task that comes alone has the same text each time, so it can be prepared.
        let answer = if let [request] = &*requests
            && let Some((text, values)) = request.alone(self.given)
        {
            _ = write!(statement, "{text}{end}, {IS_READ_ONLY}");
            link.exec(&statement, values).await
        } else {
            columns = requests.iter().map(|request| request.write(&mut statement, self.given)).collect();
            _ = write!(statement, "{end}, {IS_READ_ONLY}");
            link.run(&statement).await
        };
        let answers = match answer {
            Ok(rows) => read_answers(rows, &columns),
            Err(refusal) => Err(refusal.into_failure()),
        };
        match answers {
            Ok(answers) => {
                let mut unshown = self.unshown();
                unshown.is_marked = is_marked;
                for (request, answer) in requests.iter().zip(&answers) {
                    match (request, *answer) {
                        (Request::Lock { claim, .. }, Some(given)) if given != 0 => {
                            unshown.claims.insert(*claim);
                        }
                        // They are not shown, and it is tried again.
                        (Request::Show { .. }, answer) if answer != Some(1) => {}
                        _ => {
                            for claim in request.seen_or_gone() {
                                unshown.claims.remove(claim);
                            }
                        }
                    }
                }
                answers.into_iter().map(Ok).collect()
            }
            Err(failure) => {
                let undone = self.undo(link, &requests).await;
                let mut unshown = self.unshown();
                // It is not known whether the session has the lock, and one that it does not have is taken.
                unshown.is_marked = false;
                for request in &requests {
                    if let Request::Unlock { claim, .. } = request {
                        unshown.claims.remove(claim);
                    }
                }
                let is_alone = requests.len() == 1;
                let answer = |request| after_failure(request, &failure, &undone, is_alone);
                requests.iter().map(answer).collect()
            }
        }
    }

    /// Takes back what a statement that failed may have done.
    async fn undo(&self, link: &SessionLink, requests: &[Request]) -> Result<(), Failure> {
        let mut statement = String::from("SELECT ");
        for request in requests {
            request.write_undone(&mut statement);
        }
        statement.push_str(&format!("RELEASE_LOCK({})", self.marker));
        let unanswered = |refusal: Refusal| refusal.into_failure().into_unanswered();
        link.run(&statement).await.map(drop).map_err(unanswered)
    }

    fn unshown(&self) -> MutexGuard<'_, Unshown> {
        // Every change is complete before anything can panic.
        self.unshown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_answers(rows: Vec<mysql_async::Row>, columns: &[usize]) -> Result<Vec<Option<u64>>, Failure> {
    let row = only(rows)?;
    // Behind the marker.
    let mut at = 1;
    let mut answers = Vec::with_capacity(columns.len());
    for columns in columns {
        answers.push(read(&row, at)?);
        at += columns;
    }
    match read::<u8>(&row, at + 1)? {
        0 => Ok(answers),
        _ => Err(read_only()),
    }
}

/// Returns the answer to a request whose statement failed, and that was taken back or not.
fn after_failure(
    request: &Request,
    failure: &Failure,
    undone: &Result<(), Failure>,
    is_alone: bool,
) -> Result<Option<u64>, Failure> {
    match (request, undone) {
        (_, Err(failure)) => Err(failure.clone()),
        // The session had it before, and has it no longer. But another server may have decided meanwhile.
        (Request::Unlock { .. }, Ok(())) if failure.effect == Effect::None => Ok(Some(1)),
        // The session lives: it has answered.
        (Request::Nothing, Ok(())) if failure.effect == Effect::None => Ok(Some(0)),
        // It may be the fault of another request, which the server refuses for good.
        (_, Ok(())) if !is_alone && !failure.is_transient() => {
            let text = format!("one of several requests was refused, so all were: {failure}");
            Err(Failure::unavailable(text))
        }
        (_, Ok(())) => Err(failure.clone()),
    }
}
/// Requests of one statement.
const AT_ONCE: usize = 100;

#[cfg(test)]
mod tests {
    use leasehold_core::FailureKind;

    use super::*;

    /// All locks of a session end with it, and not because the server refuses the name of another one.
    #[test]
    fn sign_of_life_is_not_refused_with_the_requests_beside_it() {
        let refused = Failure::new(FailureKind::Unsupported, Effect::None, "no such name");
        for is_alone in [false, true] {
            let answer = after_failure(&Request::Nothing, &refused, &Ok(()), is_alone);
            assert_eq!(answer.unwrap(), Some(0));
        }
        let unanswered = Failure::unanswered("the connection ended");
        assert!(after_failure(&Request::Nothing, &unanswered, &Ok(()), false).is_err());
        assert!(after_failure(&Request::Nothing, &refused, &Err(unanswered), false).is_err());
    }
}
