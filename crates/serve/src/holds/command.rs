//! The requests to the task of one id, and the clients that wait for its answer.

use std::sync::Arc;

use leasehold::Moment;
use tokio::sync::{Notify, mpsc, oneshot};

use super::Arrival;
use super::end::End;
use super::shape::{EventShape, GrantShape};
use crate::problem::{Code, Problem};

/// The answer to a request about one id.
pub(super) type Answer = Result<GrantShape, Problem>;

/// A request to the task.
#[derive(Debug)]
pub(super) enum Command {
    /// To wait for the grant, or to see it again.
    Join(Party),
    /// To stay held for another ttl.
    Renew(Ask),
    /// To see the state.
    Look(Ask),
    /// To change what observers of an election see.
    Proclaim(Ask, String),
    /// To end.
    Release(oneshot::Sender<Result<(), Problem>>),
}

/// A request, and where its answer goes.
#[derive(Debug)]
pub(super) struct Ask {
    /// When the request arrived.
    pub(super) received: Moment,
    pub(super) reply: oneshot::Sender<Answer>,
}

/// A request that waits, for one answer or for a stream of them.
#[derive(Debug)]
pub(super) struct Party {
    pub(super) arrival: Arrival,
    /// When its wait ends.
    pub(super) until: Moment,
    pub(super) outlet: Outlet,
}

/// The receiver of the answers to a request.
#[derive(Debug)]
pub(super) enum Outlet {
    Reply(oneshot::Sender<Answer>),
    Stream(mpsc::Sender<EventShape>),
}

impl Party {
    /// Returns `true` if its client has gone.
    pub(super) fn is_gone(&self) -> bool {
        match &self.outlet {
            Outlet::Reply(reply) => reply.is_closed(),
            Outlet::Stream(events) => events.is_closed(),
        }
    }

    /// Sends a stream the event that it waits. A new one has room for it, and one that is full has enough of them.
    pub(super) fn send_waiting(&self) {
        if let Outlet::Stream(events) = &self.outlet {
            drop(events.try_send(EventShape::bare("waiting")));
        }
    }

    /// Ends it with a problem.
    pub(super) fn refuse(self, problem: Problem) {
        match self.outlet {
            // If the client has gone, nobody wants to know.
            Outlet::Reply(reply) => drop(reply.send(Err(problem))),
            Outlet::Stream(events) => drop(events.try_send(EventShape::refused(&problem))),
        }
    }
}

impl Command {
    /// Answers that the hold has ended.
    pub(super) fn refuse(self, end: End) {
        match self {
            Command::Join(party) => party.refuse(end.problem()),
            Command::Renew(ask) | Command::Look(ask) | Command::Proclaim(ask, _) => {
                drop(ask.reply.send(Err(end.problem())));
            }
            Command::Release(reply) => {
                let answer = match end {
                    End::Released => Ok(()),
                    End::Lost(_) => Err(end.problem()),
                };
                drop(reply.send(answer));
            }
        }
    }
}

/// Wakes the task of an id when the request that has it ends, whether it was answered or not.
#[derive(Debug)]
pub(super) struct Ticket(pub(super) Arc<Notify>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Returns what a request gets whose wait is over, while other requests with its id wait or not.
pub(super) fn busy(others_wait: bool) -> Problem {
    let text = if others_wait {
        "the lock is held, and another request with this id still waits for it: send this one again to wait as well, \
         or DELETE the id to end that wait"
    } else {
        "the lock is held, and nothing of this request is left: send it again; ?wait= says how long it waits, up to \
         --max-wait of the server"
    };
    Problem::new(Code::Busy, text)
}
