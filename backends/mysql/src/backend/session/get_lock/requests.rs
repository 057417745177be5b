//! What tasks ask a session for: each an expression of one statement, so that those of several tasks go to the
//! server together.
//!
//! Ground rules: a statement that fails may have taken some locks, and released others. What it may have taken
//! is released by another one, or the session is in doubt. While a session has locks that other clients do
//! not see yet, it has a named lock that says so.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use leasehold_backend::session::Combiner;
use leasehold_core::Failure;

use super::UNSHOWN;
use crate::backend::session::fences::COUNTER;
use crate::error::Refusal;
use crate::net::dial::{only, read};
use crate::net::session::SessionLink;

/// A request. Names of locks are expressions of SQL, those of claims are plain.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// Takes a lock: 0 if another session has it, else a number for its fence, or 1.
    Lock { name: String, former: Option<String> },
    /// Releases a lock: 1 if the session had it.
    Unlock { name: String, former: Option<String>, claim: Option<String> },
    /// Lets the rows of claims count: 1.
    Show { claims: Vec<String> },
    /// Nothing: 0.
    Nothing,
}

impl Request {
    /// Writes the expressions of which the first is the answer, and returns their number.
    fn write(&self, statement: &mut String, given: &str) -> usize {
        // What is evaluated depends on what was before: a CASE evaluates nothing in advance.
        let written = match self {
            Request::Lock { name, former: None } => {
                (write!(statement, "CASE GET_LOCK({name}, 0) WHEN 1 THEN {given} WHEN 0 THEN 0 END, "), 1)
            }
            // A lock with two names is taken under both or none.
            Request::Lock { name, former: Some(former) } => (
                write!(
                    statement,
                    "CASE GET_LOCK({name}, 0) WHEN 1 THEN CASE GET_LOCK({former}, 0) WHEN 1 THEN {given} \
                     ELSE 0 * RELEASE_LOCK({name}) END WHEN 0 THEN 0 END, "
                ),
                1,
            ),
            Request::Unlock { name, former, claim } => {
                let mut columns = 1;
                let mut written = write!(statement, "RELEASE_LOCK({name}), ");
                if let Some(former) = former {
                    written = written.and(write!(statement, "RELEASE_LOCK({former}), "));
                    columns += 1;
                }
                if let Some(claim) = claim {
                    written = written.and(write!(statement, "RELEASE_LOCK('{claim}'), "));
                    columns += 1;
                }
                (written, columns)
            }
            Request::Show { claims } => {
                let shown = claims.iter().map(|claim| {
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
        let undone = match self {
            Request::Lock { name, former } | Request::Unlock { name, former, .. } => {
                let former = former.as_ref().map(|former| format!(", RELEASE_LOCK({former})"));
                format!("RELEASE_LOCK({name}){}, ", former.unwrap_or_default())
            }
            Request::Show { claims } => {
                claims.iter().map(|claim| format!("RELEASE_LOCK('{claim}'), ")).collect()
            }
            Request::Nothing => String::new(),
        };
        statement.push_str(&undone);
        if let Request::Unlock { claim: Some(claim), .. } = self {
            statement.push_str(&format!("RELEASE_LOCK('{claim}'), "));
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

/// The locks that other clients do not see yet.
#[derive(Clone, Copy, Debug, Default)]
struct Unshown {
    count: usize,
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

    /// Notes on the server that other clients see all locks, if that is so.
    pub(super) async fn rest(&self, link: &SessionLink) -> Result<(), Failure> {
        let Unshown { count, is_marked } = self.unshown();
        if is_marked && count == 0 {
            self.ask(link, Request::Nothing).await?;
        }
        Ok(())
    }

    async fn send(&self, link: &SessionLink, requests: Vec<Request>) -> Vec<Result<Option<u64>, Failure>> {
        let mut statement = String::from("SELECT ");
        let columns: Vec<usize> =
            requests.iter().map(|request| request.write(&mut statement, self.given)).collect();
        let before = self.unshown();
        let locks = requests.iter().any(|request| matches!(request, Request::Lock { .. }));
        let gone = requests.iter().map(seen_or_gone).sum();
        // Behind the requests, so that no lock is unseen and unsaid when it has been shown.
        let is_marked = locks || before.count > gone;
        match (before.is_marked, is_marked) {
            (false, true) => statement.push_str(&format!("GET_LOCK({}, 0)", self.marker)),
            (true, false) => statement.push_str(&format!("RELEASE_LOCK({})", self.marker)),
            _ => statement.push('0'),
        }
        let answers = match link.run(&statement).await {
            Ok(rows) => read_answers(rows, &columns),
            Err(refusal) => Err(refusal.into_failure()),
        };
        match answers {
            Ok(answers) => {
                let is_new = |(request, answer): &(&Request, &Option<u64>)| {
                    matches!(request, Request::Lock { .. }) && answer.is_some_and(|given| given != 0)
                };
                let new = requests.iter().zip(&answers).filter(is_new).count();
                self.set_unshown(Unshown { count: (before.count + new).saturating_sub(gone), is_marked });
                answers.into_iter().map(Ok).collect()
            }
            Err(failure) => {
                let undone = self.undo(link, &requests).await;
                // It is not known whether the session has the lock, and one that it does not have is taken.
                let count = before.count.saturating_sub(gone);
                self.set_unshown(Unshown { count, is_marked: false });
                requests.iter().map(|request| after_failure(request, &failure, &undone)).collect()
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
        let unanswered = |refusal: Refusal| Failure::unanswered(refusal.into_failure().to_string());
        link.run(&statement).await.map(drop).map_err(unanswered)
    }

    fn unshown(&self) -> Unshown {
        *self.unshown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_unshown(&self, unshown: Unshown) {
        *self.unshown.lock().unwrap_or_else(PoisonError::into_inner) = unshown;
    }
}

/// Returns how many locks that others do not see are seen or gone afterwards.
fn seen_or_gone(request: &Request) -> usize {
    match request {
        Request::Show { claims } => claims.len(),
        Request::Unlock { claim: None, .. } => 1,
        Request::Unlock { .. } | Request::Lock { .. } | Request::Nothing => 0,
    }
}

fn read_answers(rows: Vec<mysql_async::Row>, columns: &[usize]) -> Result<Vec<Option<u64>>, Failure> {
    let row = only(rows)?;
    let mut at = 0;
    let mut answers = Vec::with_capacity(columns.len());
    for columns in columns {
        answers.push(read(&row, at)?);
        at += columns;
    }
    Ok(answers)
}

/// Returns the answer to a request whose statement failed, and that was taken back or not.
fn after_failure(
    request: &Request,
    failure: &Failure,
    undone: &Result<(), Failure>,
) -> Result<Option<u64>, Failure> {
    match (request, undone) {
        (_, Err(failure)) => Err(failure.clone()),
        // The session had it before, and has it no longer.
        (Request::Unlock { .. }, Ok(())) => Ok(Some(1)),
        (_, Ok(())) => Err(failure.clone()),
    }
}

/// Requests of one statement.
const AT_ONCE: usize = 100;
