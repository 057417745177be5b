//! The laws of all backends, checked through HTTP.
//!
//! Not among them are those that need what the API does not show on purpose: each waiter of one server in the queue
//! of the store, where a server has one place for all its waiters, and whether a release found something, since a
//! repeated release is a success.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::backend::Backend;
use leasehold_conformance::{Outcome, Subject, laws};

use crate::support::Served;
use crate::support::backend::HttpBackend;

struct OverHttp(Served);

#[async_trait]
impl Subject for OverHttp {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        Some(HttpBackend::open(self.0.address, &self.0.token))
    }

    fn ttl(&self) -> std::time::Duration {
        std::time::Duration::from_secs(1)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn laws_hold_through_http() {
    let subject = OverHttp(Served::with(|config| config.limits.rate = 1_000_000).await);
    let mut broken = Vec::new();
    let wanted = std::env::var("SERVE_LAW").ok();
    for law in laws() {
        let is_meant = match &wanted {
            Some(part) => law.name.contains(part.as_str()),
            None => LAWS.contains(&law.name),
        };
        if is_meant {
            match law.check(&subject).await {
                Outcome::Kept => println!("{}: kept", law.name),
                // A law of the list that no longer applies would not be checked.
                outcome => {
                    println!("{}: {outcome:?}", law.name);
                    broken.push(law.name);
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn laws_to_check_exist() {
    for name in LAWS {
        assert!(laws().iter().any(|law| law.name == *name), "{name}");
    }
}

const LAWS: &[&str] = &[
    "profile::promises_are_the_same_on_every_connection",
    "profile::free_resource_is_granted_at_once",
    "safety::each_pair_of_shares_is_decided_by_the_rule",
    "safety::a_capacity_fills_up_exactly",
    "safety::one_holder_among_many_takers",
    "safety::writers_of_different_shares_exclude_each_other",
    "safety::permits_of_several_weights",
    "safety::readers_and_writers",
    "safety::the_smallest_capacity_counts",
    "idempotence::repeated_contend_returns_the_same_grant",
    "idempotence::a_repeated_claim_takes_its_weight_once",
    "idempotence::a_second_renewal_answers_the_same",
    "renewal::a_released_claim_is_not_renewed",
    "renewal::an_expired_claim_is_not_renewed",
    "renewal::a_renewal_extends_the_lease",
    "residue::contend_without_patience_leaves_no_place",
    "residue::resources_without_claims_are_not_listed",
    "patience::ended_patience_means_one_attempt",
    "patience::wait_returns_when_patience_ends",
    "patience::a_grant_in_time_is_reported",
    "order::fences_rise_over_two_hundred_grants",
    "order::fences_rise_among_holders_together",
    "order::a_fence_survives_the_end_of_a_lease",
    "own_only::expired_holder_does_not_end_the_successor",
    "own_only::release_of_one_holder_keeps_the_others",
    "wake::a_release_wakes_a_waiter",
    "view::names_never_collide",
    "batch::an_empty_batch_has_no_answers",
];
