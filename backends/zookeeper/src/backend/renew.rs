//! Confirms what is held: the session by one request through the leader, each claim by a look at its node.
//!
//! The client keeps the session alive by pings of its own, but a server answers those without asking
//! the leader, also when it has lost it. So a renewal is counted from a request that a quorum agrees
//! to.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{join, join_all};
use leasehold_core::{Claim, Failure, Renew, Renewal};
use zookeeper_client::{Client, Error, MultiReadResult};

use crate::client::Ensemble;
use crate::net::session::EnsembleSession;
use crate::protocol::layout;
use crate::state::claim_table::OwnNode;

impl Ensemble {
    /// Confirms the claims of a batch, in order. `limit` is when an answer would come too late.
    pub(crate) async fn renew(&self, batch: &[Renew<'_>], limit: Duration) -> Vec<Renewal> {
        // A claim that this client does not hold is lost.
        let mut answers: Vec<Renewal> = batch.iter().map(|_| Renewal::Lost).collect();
        let mut looks: BTreeMap<i64, Vec<(usize, OwnNode)>> = BTreeMap::new();
        for (number, renew) in batch.iter().enumerate() {
            if let Some((session, own)) = self.node(renew.claim) {
                looks.entry(session).or_default().push((number, own));
            }
        }
        let asked = looks.into_iter().map(|(session, nodes)| async move {
            let path = |(number, own): &(usize, OwnNode)| self.path(batch[*number].claim, own);
            let paths: Vec<String> = nodes.iter().map(path).collect();
            (nodes, self.renew_in(session, &paths, limit).await)
        });
        for (nodes, renewals) in join_all(asked).await {
            for ((number, own), renewal) in nodes.into_iter().zip(renewals) {
                if matches!(renewal, Renewal::Lost) {
                    self.claims.forget_node(batch[number].claim.id, &own.name);
                }
                answers[number] = renewal;
            }
        }
        answers
    }

    /// Returns the session and the node of a claim that this client holds.
    fn node(&self, claim: &Claim) -> Option<(i64, OwnNode)> {
        let known = self.claims.get(claim.id).filter(|known| known.resource == claim.resource)?;
        Some((known.session, known.held(known.session)?.clone()))
    }

    /// Confirms nodes of one session.
    async fn renew_in(&self, session: i64, paths: &[String], limit: Duration) -> Vec<Renewal> {
        let Some(session) = self.session_pool.session(session) else {
            return vec![Renewal::Lost; paths.len()];
        };
        if !session.is_connected() {
            let failure = Failure::unavailable("the connection is down; the session may live on");
            return vec![Renewal::Unknown(failure); paths.len()];
        }
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        match self.look_at_all(&session, &paths, limit).await {
            Ok(looks) => looks,
            Err(failure) => vec![Renewal::Unknown(failure); paths.len()],
        }
    }

    async fn look_at_all(
        &self,
        session: &EnsembleSession,
        paths: &[&str],
        limit: Duration,
    ) -> Result<Vec<Renewal>, Failure> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        // A renewal counts from before this. After a pause of this process the leader has to hear of the session first.
        session.settled(self.validity.report_lag(), limit).await?;
        let failed = |error| layout::failure(error, "cannot confirm what is held");
        let proof = session.prove(self.names.root()).map_err(failed)?;
        let requests: Result<Vec<_>, Error> =
            chunks(paths).into_iter().map(|chunk| look_at(&session.client, chunk)).collect();
        let all = join(proof, join_all(requests.map_err(failed)?));
        let all = async {
            let (proven, looks) = all.await;
            proven?;
            looks.into_iter().collect::<Result<Vec<_>, Error>>()
        };
        let looks: Vec<Renewal> =
            session.ask(limit, all).await.map_err(failed)?.into_iter().flatten().map(read).collect();
        if looks.len() == paths.len() { Ok(looks) } else { Err(unread()) }
    }
}

/// Builds one request that looks at several nodes. It asks for their children, of which they have none:
/// the shortest answer.
fn look_at(
    client: &Client,
    paths: &[&str],
) -> Result<impl Future<Output = Result<Vec<MultiReadResult>, Error>>, Error> {
    let mut reader = client.new_multi_reader();
    for path in paths {
        reader.add_get_children(path)?;
    }
    Ok(reader.commit())
}

fn read(result: MultiReadResult) -> Renewal {
    match result {
        MultiReadResult::Children { .. } | MultiReadResult::Data { .. } => Renewal::Alive,
        MultiReadResult::Error { err: Error::NoNode } => Renewal::Lost,
        MultiReadResult::Error { err } => {
            Renewal::Unknown(layout::failure(err, "cannot confirm what is held"))
        }
        _ => Renewal::Unknown(unread()),
    }
}

fn unread() -> Failure {
    Failure::unanswered("the server's answer to a renewal has another form than was asked for")
}

/// Cuts a batch so that no request comes near the servers' limit, 1 MiB unless set.
fn chunks<'a>(paths: &'a [&'a str]) -> Vec<&'a [&'a str]> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, path) in paths.iter().enumerate() {
        let full = at - start == LOOKS_MAX || bytes + path.len() > BYTES_MAX;
        if full && at > start {
            chunks.push(&paths[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += path.len() + OVERHEAD;
    }
    if start < paths.len() {
        chunks.push(&paths[start..]);
    }
    chunks
}

/// The most claims that one request confirms.
pub(crate) const LOOKS_MAX: usize = 512;
const BYTES_MAX: usize = 256 * 1024;
/// The overhead of each path in a request, in bytes.
const OVERHEAD: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_by_number_and_by_size_and_nothing_is_left_out() {
        let (short, long) = ("/a".to_owned(), "/".repeat(1600));
        for (path, count, requests) in [(&short, 1200, 3), (&long, 512, 4), (&short, 1, 1), (&short, 512, 1)]
        {
            let paths = vec![path.as_str(); count];
            let cut = chunks(&paths);
            assert_eq!(cut.iter().map(|chunk| chunk.len()).sum::<usize>(), count);
            assert_eq!(cut.len(), requests, "{count} of {} bytes", path.len());
        }
        assert!(chunks(&[]).is_empty());
    }
}
