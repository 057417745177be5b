//! Confirming what is held: the session by one request through the leader, each claim by a look at its node.
//!
//! The client keeps the session alive by pings of its own, but a server answers those without asking the leader, also
//! when it has lost it. So a renewal is counted from a request that a quorum agrees to.

use std::time::Duration;

use futures_util::future::{join, join_all};
use leasehold_core::{Claim, Failure, Renew, Renewal};
use zookeeper_client::{Client, Error, MultiReadResult};

use crate::backend::Ensemble;
use crate::session::Session;
use crate::wire;

/// What a claim of a batch needs.
enum Need {
    /// It is not held by this client, or not in this session.
    Nothing,
    /// A look at this node.
    Look(String),
}

impl Ensemble {
    /// Confirms the claims of a batch, in order. `limit` is when an answer would come too late.
    pub(crate) async fn confirm(&self, batch: &[Renew<'_>], limit: Duration) -> Vec<Renewal> {
        if batch.is_empty() {
            return Vec::new();
        }
        let session = match self.sessions.present(limit).await {
            Ok(session) if session.is_connected() => session,
            Ok(_) => {
                let failure = Failure::unavailable("the connection is down; the session may live on");
                return vec![Renewal::Unknown(failure); batch.len()];
            }
            Err(failure) => return vec![Renewal::Unknown(failure); batch.len()],
        };
        let needs: Vec<Need> = batch.iter().map(|renew| self.need(&session, renew.claim)).collect();
        let paths: Vec<&str> = needs
            .iter()
            .filter_map(|need| match need {
                Need::Nothing => None,
                Need::Look(path) => Some(path.as_str()),
            })
            .collect();
        let mut looks = match self.look_at_all(&session, &paths, limit).await {
            Ok(looks) => looks.into_iter(),
            Err(failure) => vec![Renewal::Unknown(failure); paths.len()].into_iter(),
        };
        let lost = |renewal: &Renewal, claim: &Claim| {
            if matches!(renewal, Renewal::Lost) {
                self.places.forget(claim.id);
            }
        };
        let answer = |(need, renew): (&Need, &Renew<'_>)| match need {
            Need::Nothing => Renewal::Lost,
            Need::Look(_) => {
                let renewal = looks.next().unwrap_or_else(|| Renewal::Unknown(unread()));
                lost(&renewal, renew.claim);
                renewal
            }
        };
        needs.iter().zip(batch).map(answer).collect()
    }

    fn need(&self, session: &Session, claim: &Claim) -> Need {
        let known = self.places.get(claim.id).filter(|known| known.resource == claim.resource);
        match known.as_ref().and_then(|known| known.held(session.id)) {
            Some(own) => Need::Look(self.path(claim, own)),
            None => Need::Nothing,
        }
    }

    async fn look_at_all(
        &self,
        session: &Session,
        paths: &[&str],
        limit: Duration,
    ) -> Result<Vec<Renewal>, Failure> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let failed = |error| wire::failure(error, "cannot confirm what is held");
        let proof = session.prove(self.names.root()).map_err(failed)?;
        let requests: Result<Vec<_>, Error> =
            chunks(paths).into_iter().map(|some| look_at(&session.client, some)).collect();
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

/// One request that looks at several nodes. It asks for their children, of which they have none: the shortest answer.
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
        MultiReadResult::Error { err } => Renewal::Unknown(wire::failure(err, "cannot confirm what is held")),
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
/// What each path takes beside itself.
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
            assert_eq!(cut.iter().map(|some| some.len()).sum::<usize>(), count);
            assert_eq!(cut.len(), requests, "{count} of {} bytes", path.len());
        }
        assert!(chunks(&[]).is_empty());
    }
}
