//! A backend that is a client of the HTTP API, so that the laws of all backends can be checked through it.
//!
//! The id of a claim is the id of its hold, and is put into its note, because the server shows no ids. Its grants
//! are those of the server: it does not count `valid_ms`, which the tests of the server do.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::backend::{
    AtOnce, Backend, Claim, ClaimId, ClaimInfo, Effect, Failure, FailureKind, Grant, Hint, Liveness,
    LockSupport, Note, Patience, Profile, Release, Renew, Renewal, Resource, ResourceSummary, Share,
    Snapshot, SnapshotVersion, Step, WaitMode,
};
use leasehold::{Durability, Fence, FenceGrade};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::http::{Reply, Request};

/// A client of one server.
#[derive(Debug)]
pub(crate) struct HttpBackend {
    profile: Profile,
    address: std::net::SocketAddr,
    token: String,
}

impl HttpBackend {
    pub(crate) fn open(address: std::net::SocketAddr, token: &str) -> Arc<dyn Backend> {
        let liveness = Liveness::Lease { min: Duration::from_millis(500), max: Duration::from_secs(3600) };
        let profile = Profile::new("http", liveness)
            .admission(LockSupport::Counted)
            .waiting(WaitMode::Blocks)
            .fencing(FenceGrade::BestEffort)
            .durability(Durability::LostOnFailover)
            .granularity(Duration::from_millis(20))
            .overrun(Duration::from_secs(1))
            .note_max(900);
        Arc::new(HttpBackend { profile, address, token: token.to_owned() })
    }

    fn request(&self, method: &str, path: &str) -> Request {
        Request::new(self.address, method, path).header("authorization", &format!("Bearer {}", self.token))
    }

    async fn look(&self, resource: &Resource) -> Snapshot {
        let name = encoded(resource.as_str());
        let shown = self.request("GET", &format!("/v1/locks/{name}")).send().await.ok();
        let claims = |key: &str| shown[key].as_array().unwrap().iter().filter_map(info).collect::<Vec<_>>();
        let fence = shown["fence"].as_str().map(|text| text.parse().unwrap());
        let (holders, waiting) = (claims("holders"), claims("waiting"));
        let ids = |claims: &[ClaimInfo]| claims.iter().map(|claim| claim.id.tag()).collect::<Vec<_>>();
        let version = SnapshotVersion::new(format!("{:?} {:?} {fence:?}", ids(&holders), ids(&waiting)));
        Snapshot::new(resource.clone(), version).holders(holders).waiting(waiting).fence(fence)
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn info(claim: &Value) -> Option<ClaimInfo> {
    let (id, note) = claim["note"].as_str()?.split_once(' ')?;
    let share = serde_json::from_value::<Share>(claim["share"].clone()).unwrap();
    let fence: Option<Fence> = claim["fence"].as_str().map(|text| text.parse().unwrap());
    let remaining = claim["remaining_ms"].as_u64().map(Duration::from_millis);
    let info = ClaimInfo::new(ClaimId::from_hex(id)?, share).fence(fence).remaining(remaining);
    Some(info.since_unix_ms(claim["since_unix_ms"].as_u64()).note(Note::clipped(note)))
}

fn body(claim: &Claim) -> Value {
    let mut body = json!({
        "name": claim.resource.as_str(),
        "ttl": format!("{}ms", claim.ttl.as_millis()),
        "note": format!("{} {}", claim.id.to_hex(), claim.note.as_str()),
        "on_disconnect": "release",
    });
    match claim.share {
        Share::MUTEX => body["mode"] = "mutex".into(),
        Share::READER => body["mode"] = "read".into(),
        Share::WRITER => body["mode"] = "write".into(),
        share => {
            body["mode"] = "permits".into();
            (body["permits"], body["of"]) = (share.weight().into(), share.capacity().into());
        }
    }
    body
}

fn failure(reply: &Reply) -> Failure {
    let kind = match reply.status {
        400 | 409 | 410 => FailureKind::Invalid,
        422 => FailureKind::Unsupported,
        504 => return Failure::unanswered(reply.body.clone()),
        _ => return Failure::unavailable(reply.body.clone()),
    };
    Failure::new(kind, Effect::None, reply.body.clone())
}

#[async_trait]
impl Backend for HttpBackend {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        None
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let asked_at = patience.now();
        let wait =
            if patience.is_ended() { Duration::ZERO } else { patience.left().min(Duration::from_secs(60)) };
        let path = format!("/v1/holds/{}?wait={}ms", claim.id.to_hex(), wait.as_millis());
        let request = self.request("PUT", &path).body(&body(claim));
        // Patience can end before its time; the client then closes its connection, which ends the wait.
        let mut answer = std::pin::pin!(request.send());
        let reply = loop {
            tokio::select! {
                reply = &mut answer => break reply,
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
            if !wait.is_zero() && patience.is_ended() {
                match tokio::time::timeout(Duration::from_millis(200), &mut answer).await {
                    Ok(reply) => break reply,
                    Err(_) => return Ok(Step::Busy(Hint::default())),
                }
            }
        };
        match reply.status {
            200 => {
                let fence = reply.json()["fence"].as_str().map(|text| text.parse().unwrap());
                Ok(Step::Granted(Grant::new(asked_at).fence(fence)))
            }
            423 => Ok(Step::Busy(Hint::default())),
            _ => Err(failure(&reply)),
        }
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let mut outcomes = Vec::new();
        for renew in batch {
            let path = format!("/v1/holds/{}/renew", renew.claim.id.to_hex());
            let reply = self.request("POST", &path).send().await;
            outcomes.push(if reply.status == 200 { Renewal::Renewed } else { Renewal::Lost });
        }
        outcomes
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        let mut outcomes = Vec::new();
        for claim in batch {
            let reply = self.request("DELETE", &format!("/v1/holds/{}", claim.id.to_hex())).send().await;
            outcomes.push(match reply.status {
                200 => Release::Freed,
                410 => Release::Gone,
                _ => Release::Unknown(failure(&reply)),
            });
        }
        outcomes
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        loop {
            let snapshot = self.look(resource).await;
            if patience.is_ended() || seen.is_none_or(|seen| *seen != snapshot.version) {
                return Ok(snapshot);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let after = after.map(|name| format!("&after={}", encoded(name.as_str()))).unwrap_or_default();
        let path = format!("/v1/locks?prefix={}{after}&limit={}", encoded(prefix), limit.clamp(1, 1000));
        let shown = self.request("GET", &path).send().await.ok();
        let count = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
        let summary = |one: &Value| {
            let resource = Resource::new(one["name"].as_str().unwrap()).unwrap();
            ResourceSummary::new(resource, count(&one["holders"]), count(&one["waiting"]))
        };
        Ok(shown["locks"].as_array().unwrap().iter().map(summary).collect())
    }
}
