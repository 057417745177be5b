//! A script that was sent over a connection, and is not answered yet.

use tokio::time::Instant;

use crate::net::connection::Link;
use crate::net::pipe::Reply;
use crate::net::request::{LinkValues, Naming, Request, ScriptText, push_command};
use crate::net::timer;

/// A script that was sent.
pub(crate) struct Sent {
    pub(crate) reply: Reply,
    pub(crate) checks_rights: bool,
    pub(crate) link_values: LinkValues,
    pub(crate) begun_at: Instant,
}

impl Sent {
    /// Sends a script over a connection, in this role.
    pub(crate) fn over(link: &Link, request: &Request, naming: Naming, role: RequestRole) -> Sent {
        let begun_at = timer::now();
        let link_values = link.values(begun_at);
        let reply = send_script(link, request, naming, role, link_values);
        Sent { reply, checks_rights: request.checks_rights(), link_values, begun_at }
    }
}

/// Sends a script over a connection, and returns its reply. Several may have the same link values.
pub(crate) fn send_script(
    link: &Link,
    request: &Request,
    naming: Naming,
    role: RequestRole,
    link_values: LinkValues,
) -> Reply {
    let is_referred = role == RequestRole::Referred;
    let of_run = link.run().filter(|_| request.is_of_a_run()).map(|run| run.script(request.script));
    let text = of_run.as_deref().map_or_else(|| ScriptText::from(request.script), ScriptText::from);
    link.pipe().send(usize::from(is_referred), |bytes| {
        if is_referred {
            push_command(bytes, "ASKING");
        }
        request.write(bytes, text, naming, link_values);
    })
}

/// The role in which a request is sent to a server of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestRole {
    /// It serves the slot, as far as is known.
    Known,
    /// The server that serves the slot has sent it there, because it has given the keys away already.
    Referred,
}
