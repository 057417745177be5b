//! At most one candidate leads, and no value outlives its leader; and a leader that is cut off.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold::layer::{Mode, Verb};
use leasehold::{Client, ErrorKind, FenceGrade, Leadership};

use crate::history::{Event, History, crowds};
use crate::world::{Chance, Peer, clients, is_whole_campaign, on_half_of_them, soon};

/// Leads until the time is over or leadership is lost, the one that is first.
async fn lead(leadership: &Leadership, terms: &History, reign: Duration) {
    terms.note(Event::Took(0, leadership.fence().unwrap()));
    let _ = tokio::time::timeout(reign, leadership.guard().lost()).await;
    terms.note(Event::Gives(0));
}

async fn candidate(client: Peer, terms: History, mut chance: Chance, dies: bool) {
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
            lead(&leadership, &terms, LONG).await;
            return;
        }
        if chance.below(2) == 0 {
            // The wire may refuse it; then the value stays.
            let _ = leadership.proclaim(&format!("{value}, again")).await;
        }
        lead(&leadership, &terms, chance.ms(300)).await;
        match chance.below(3) {
            0 => drop(leadership),
            _ => drop(leadership.resign().await),
        }
    }
}

#[test]
fn at_most_one_leads_and_no_value_outlives_its_leader() {
    on_half_of_them(|mut world| async move {
        let terms = History::default();
        let tasks: Vec<_> = (0..2 + world.chance.below(3))
            .map(|_| {
                let (client, chance) = (world.client(), world.chance.fork());
                let dies = world.chance.below(4) == 0;
                tokio::spawn(candidate(client, terms.clone(), chance, dies))
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        terms.judge();
        // By then the claims of dead clients and of lost requests have ended.
        tokio::time::sleep(4 * TTL).await;
        let onlooker = world.calm_client();
        let election = onlooker.locks.election("boss").ttl(TTL);
        assert_eq!(election.leader().await.unwrap(), None, "a value has outlived its leader");
        let last = election.campaign("last").await.unwrap();
        assert!(last.fence() > terms.newest(0));
        assert_eq!(election.leader().await.unwrap().unwrap().value, "last");
        last.resign().await.unwrap();
    });
}

#[test]
fn elections_have_one_leader_and_no_value_outlives_its_leader() {
    let events = crowds(|locks, history, mut chance| async move {
        let election = locks.election("boss");
        for round in 0..ROUNDS {
            chance.pause().await;
            let value = format!("{}/{round}", chance.below(1_000_000));
            let leadership = match chance.below(4) {
                0 => election.try_campaign(&value).await.unwrap(),
                _ => Some(election.campaign(&value).await.unwrap()),
            };
            let Some(leadership) = leadership else { continue };
            history.note(Event::Took(0, leadership.fence().unwrap()));
            let mut seen = election.leader().await.unwrap().unwrap();
            assert_eq!((seen.value.as_str(), seen.fence), (value.as_str(), leadership.fence()));
            if chance.below(2) == 0 {
                leadership.proclaim("again").await.unwrap();
                seen = election.leader().await.unwrap().unwrap();
                assert_eq!((seen.value.as_str(), seen.fence), ("again", leadership.fence()));
            }
            chance.pause().await;
            history.note(Event::Gives(0));
            leadership.resign().await.unwrap();
        }
    });
    assert!(events > 10_000 || !is_whole_campaign(), "{events} events are too few for a campaign");
}

#[tokio::test]
async fn an_observer_is_a_stream_too() {
    let locks = Client::open("mem:").await.unwrap();
    let election = locks.election("boss").with(|seat| seat.require_fencing(FenceGrade::Strict)).unwrap();
    let stream = election.observe().into_stream();
    let mut stream = std::pin::pin!(stream);
    let mut next =
        async || soon("a leader", stream.next()).await.unwrap().unwrap().map(|leader| leader.value);
    assert_eq!(next().await, None);
    let leadership = election.campaign("ann").await.unwrap();
    assert_eq!(next().await.as_deref(), Some("ann"));
    leadership.resign().await.unwrap();
    assert_eq!(next().await, None);
}

/// A grant that comes too late for its candidate belongs to nobody.
#[tokio::test(start_paused = true)]
async fn candidate_that_has_left_does_not_lead_for_a_linger_time() {
    let [client, onlooker] = clients();
    let lingers = |seat: leasehold::Mutex| Ok(seat.linger(TTL));
    let election = client.locks.election("boss").ttl(TTL).with(lingers).unwrap();
    client.fault(Verb::Contend, Mode::LateReply(Duration::from_millis(50)));
    let campaigning = tokio::spawn(async move { election.campaign("a value").await });
    let boss = onlooker.locks.election("boss");
    while boss.leader().await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!campaigning.is_finished(), "its answer is late");
    campaigning.abort();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(boss.leader().await.unwrap(), None, "it leads, and has left");
}

#[tokio::test(start_paused = true)]
async fn leader_that_is_cut_off_loses_and_may_not_proclaim() {
    let [client] = clients();
    let election = client.locks.election("boss").ttl(Duration::from_millis(200));
    let leadership = election.campaign("ann").await.unwrap();
    client.fault(Verb::Renew, Mode::Refuse);
    let stopped = soon("the loss", leadership.run(std::future::pending::<()>())).await.unwrap_err();
    assert!(matches!(stopped.kind(), ErrorKind::Lost(_)));
    let refusal = leadership.proclaim("still here").await.unwrap_err();
    assert!(matches!(refusal.kind(), ErrorKind::Lost(_)), "{refusal}");
    assert!(matches!(leadership.resign().await.unwrap_err().kind(), ErrorKind::Lost(_)));
}

const TTL: Duration = Duration::from_secs(3);
const ROUNDS: usize = 2;
const LONG: Duration = Duration::from_secs(500);
