//! At most one candidate leads, and no value outlives its leader. A thousand schedules without faults
//! are in `tests/coordination`.
#![allow(clippy::unwrap_used, reason = "it is part of tests, which the lint does not see here")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Fence, Leadership};

use crate::world::{Chance, Peer, on_half_of_them};

/// The leader as the leaders see it, by the one clock of the schedule.
#[derive(Debug, Default)]
struct Throne {
    /// The fence of the present leader.
    leads: Mutex<Option<Fence>>,
    newest: Mutex<Option<Fence>>,
    terms: AtomicU64,
}

impl Throne {
    fn taken(&self, fence: Fence) {
        let before = self.leads.lock().unwrap().replace(fence);
        assert_eq!(before, None, "{fence} leads beside");
        let newest = self.newest.lock().unwrap().replace(fence);
        assert!(newest.is_none_or(|newest| newest < fence), "{fence} after {newest:?}");
        self.terms.fetch_add(1, Ordering::SeqCst);
    }

    fn left(&self, fence: Fence) {
        let before = self.leads.lock().unwrap().take();
        assert_eq!(before, Some(fence), "another candidate led meanwhile");
    }
}

/// Leads until the time is over or leadership is lost, whichever is first.
async fn lead(leadership: &Leadership, throne: &Throne, reign: Duration) {
    let fence = leadership.fence().unwrap();
    throne.taken(fence);
    let _ = tokio::time::timeout(reign, leadership.guard().lost()).await;
    throne.left(fence);
}

async fn candidate(client: Peer, throne: Arc<Throne>, mut chance: Chance, dies: bool) {
    let election = client.locks.election("boss").ttl(TTL);
    for round in 0..3 {
        tokio::time::sleep(chance.ms(150)).await;
        let value = chance.below(1 << 20).to_string();
        let leadership = match chance.below(3) {
            0 => election.try_campaign(&value).await.ok().flatten(),
            1 => election.try_campaign_for(&value, chance.ms(400)).await.ok().flatten(),
            _ => election.campaign(&value).await.ok(),
        };
        let Some(leadership) = leadership else { continue };
        if dies && round == 1 {
            // Nothing more arrives from this client; it leads until its own clock ends that.
            client.falls_silent();
            lead(&leadership, &throne, LONG).await;
            return;
        }
        if chance.below(2) == 0 {
            // The wire may refuse it; then the value stays.
            let _ = leadership.proclaim(&format!("{value}, again")).await;
        }
        lead(&leadership, &throne, chance.ms(300)).await;
        match chance.below(3) {
            0 => drop(leadership),
            _ => drop(leadership.resign().await),
        }
    }
}

#[test]
fn at_most_one_leads_and_no_value_outlives_its_leader() {
    on_half_of_them(|mut world| async move {
        let throne = Arc::new(Throne::default());
        let tasks: Vec<_> = (0..2 + world.chance.below(3))
            .map(|_| {
                let (client, chance) = (world.client(), world.chance.fork());
                let dies = world.chance.below(4) == 0;
                tokio::spawn(candidate(client, throne.clone(), chance, dies))
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        // By then the claims of dead clients and of lost requests have ended.
        tokio::time::sleep(4 * TTL).await;
        let onlooker = world.calm_client();
        let election = onlooker.locks.election("boss").ttl(TTL);
        assert_eq!(election.leader().await.unwrap(), None, "a value has outlived its leader");
        let last = election.campaign("last").await.unwrap();
        assert!(last.fence() > *throne.newest.lock().unwrap());
        assert_eq!(election.leader().await.unwrap().unwrap().value, "last");
        last.resign().await.unwrap();
    });
}

const TTL: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(500);
