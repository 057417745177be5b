//! Renewing claims: one request for all of one server, confirmed by replicas where that is required.

use leasehold_core::{Claim, Failure, Renew, Renewal};
use redis::Value;

use crate::backend::RedisBackend;
use crate::net::failures::HalfMoved;
use crate::net::replicas::Unconfirmed;
use crate::net::request::Request;
use crate::net::timer::Limit;
use crate::protocol::keys::Keys;
use crate::protocol::reply;
use crate::protocol::scripts;
use crate::topology::server_info::MIN_TTL;

impl RedisBackend {
    /// Renews a batch, with one answer for each claim.
    pub(super) async fn renew_batch(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        // A third of the shortest lease: a request that is repeated after that is still in time.
        let shortest = batch.iter().map(|renew| renew.claim.ttl).min().unwrap_or(MIN_TTL);
        let limit = Limit::of(self.limit_for(shortest / 3));
        let held = batch.iter().map(|renew| Keys::of(&self.config.prefix, &renew.claim.resource).held());
        let groups = self.groups(&held.collect::<Vec<_>>());
        let answers = self.servers.run_all_apart(&self.renew_requests(batch, &groups), limit.whole()).await;
        // Each key that is moving is here or there, and is renewed alone.
        let is_half_moved = |answer: &Result<Value, Failure>| answer.as_ref().is_err_and(HalfMoved::caused);
        let (moving, mut answered): (Vec<_>, Vec<_>) =
            groups.into_iter().zip(answers).partition(|(_, answer)| is_half_moved(answer));
        if !moving.is_empty() {
            let apart: Vec<Vec<usize>> =
                moving.into_iter().flat_map(|(group, _)| group).map(|position| vec![position]).collect();
            // Also if another server took all of the time.
            let left = limit.left().max(limit.whole() / 3);
            let answers = self.servers.run_all(&self.renew_requests(batch, &apart), left).await;
            answered.extend(apart.into_iter().zip(answers));
        }
        let mut renewals: Vec<Option<Renewal>> = vec![None; batch.len()];
        for (group, answer) in answered {
            // A renewal that too few replicas confirmed does not count; a claim that is gone is gone
            // all the same.
            let (answer, unconfirmed) = match answer {
                Err(failure) => match Unconfirmed::cause_of(&failure) {
                    Some(unconfirmed) => (Ok(unconfirmed.value.clone()), Some(failure)),
                    None => (Err(failure), None),
                },
                answer => (answer, None),
            };
            let numbers = answer.and_then(|answer| reply::numbers(answer, group.len()));
            for (nth, position) in group.into_iter().enumerate() {
                renewals[position] = Some(match (&numbers, &unconfirmed) {
                    (Ok(numbers), None) if numbers.get(nth) == Some(&1) => Renewal::Renewed,
                    (Ok(numbers), Some(failure)) if numbers.get(nth) == Some(&1) => {
                        Renewal::Unknown(failure.clone())
                    }
                    (Ok(_), _) => Renewal::Lost,
                    (Err(failure), _) => Renewal::Unknown(failure.clone()),
                });
            }
        }
        let unasked = || Renewal::Unknown(Failure::unavailable("it was not asked"));
        renewals.into_iter().map(|renewal| renewal.unwrap_or_else(unasked)).collect()
    }

    /// Builds one request for each group of positions in the batch.
    fn renew_requests(&self, batch: &[Renew<'_>], groups: &[Vec<usize>]) -> Vec<Request> {
        let requests = groups
            .iter()
            .map(|group| self.renew_request(group.iter().map(|position| batch[*position].claim)));
        requests.collect()
    }

    fn renew_request<'a>(&self, batch: impl Iterator<Item = &'a Claim>) -> Request {
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        for claim in batch {
            let names = Keys::of(&self.config.prefix, &claim.resource);
            keys.push(names.held());
            args.extend([reply::member(claim), reply::millis(claim.ttl), names.claims()]);
        }
        Request { script: &scripts::RENEW, keys, args, confirm: self.confirm(reply::has_renewed) }
    }
}
