//! Elections: one client leads, all know the leader, and no value outlives its leader, however the
//! leader ends.

use std::time::Duration;

use futures_util::FutureExt;
use leasehold::{Client, Election, ErrorKind, Leader, LockSupport};

use crate::fixture::{
    Fixture, LIMIT, LIVING, Part, Primitive, TTL, assert_not_granted, assert_unsupported, within_limit,
};
use crate::player::Stage;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "election",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[
        Part {
            name: "leader",
            steps: 5,
            play: |stage, locks, name| lead(stage, locks, name).boxed(),
            around: |fixture, victim| a_leader_dies(fixture, victim).boxed(),
        },
        Part {
            name: "candidate",
            steps: 1,
            play: |stage, locks, name| {
                async move {
                    let leadership =
                        stage.during("campaigns", election(locks, name, TTL).campaign("dead")).await?;
                    leadership.resign().await
                }
                .boxed()
            },
            around: |fixture, victim| {
                async move {
                    let election = election(&fixture.one, &victim.name(), LIVING);
                    let mut leads = election.try_campaign_for("first", LIMIT).await.unwrap();
                    assert!(leads.is_some(), "the first candidate does not lead");
                    if victim.survives() {
                        leads.take().unwrap().resign().await.unwrap();
                    }
                    victim.dies().await;
                    if let Some(leads) = leads {
                        leads.resign().await.unwrap();
                    }
                    let next = election.try_campaign_for("next", LIMIT).await.unwrap().unwrap();
                    assert_eq!(value(election.leader().await.unwrap()).as_deref(), Some("next"));
                    next.resign().await.unwrap();
                }
                .boxed()
            },
        },
    ],
};

fn election(locks: &Client, name: &str, ttl: Duration) -> Election {
    locks.election(name).ttl(ttl)
}

fn value(leader: Option<Leader>) -> Option<String> {
    leader.map(|leader| leader.value)
}

async fn lead(stage: &Stage, locks: &Client, name: &str) -> leasehold::Result<()> {
    let leadership = stage.during("campaigns", election(locks, name, TTL).campaign("dead/0")).await?;
    stage.at("leads").await;
    match stage.during("proclaims", leadership.proclaim("dead/1")).await {
        // If only a holder can write, the value is the one of the campaign.
        Err(error) if error.kind() == ErrorKind::Unsupported => {}
        proclaimed => proclaimed?,
    }
    stage.at("has proclaimed").await;
    stage.during("resigns", leadership.resign()).await
}

async fn a_leader_dies(fixture: &Fixture, victim: crate::player::Victim) {
    let name = victim.name();
    let mut observer = election(&fixture.two, &name, LIVING).observe();
    victim.dies().await;
    let election = election(&fixture.one, &name, LIVING);
    let next = election.try_campaign_for("next", LIMIT).await.unwrap().unwrap();
    assert_eq!(
        value(election.leader().await.unwrap()).as_deref(),
        Some("next"),
        "the value has outlived its leader"
    );
    // An observer may see the dead leader before the living one, but never after it.
    while value(within_limit("observed", observer.next()).await.unwrap()).as_deref() != Some("next") {}
    next.resign().await.unwrap();
    assert_eq!(within_limit("observed", observer.next()).await.unwrap(), None);
}

async fn rules(fixture: &Fixture) {
    candidates_lead_in_turn_and_all_clients_see_the_leader(fixture).await;
    proclaimed_value_is_seen_only_while_its_leader_leads(fixture).await;
    observer_is_notified_of_each_change(fixture).await;
    value_is_shown_as_it_is_or_refused(fixture).await;
}

async fn value_is_shown_as_it_is_or_refused(fixture: &Fixture) {
    let (ours, theirs) = (fixture.one.election("election/4"), fixture.two.election("election/4"));
    let long = "x".repeat(900);
    for value_text in ["", "10.0.0.7:8080", "two\nlines", "\u{9} é", &long] {
        match within_limit("to lead", ours.campaign(value_text)).await {
            Ok(leadership) => {
                assert_eq!(value(theirs.leader().await.unwrap()).as_deref(), Some(value_text));
                leadership.resign().await.unwrap();
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{value_text:?}: {error}");
                assert_ne!(value_text, "10.0.0.7:8080", "{error}");
                fixture.free("election/4").await;
            }
        }
    }
}

async fn candidates_lead_in_turn_and_all_clients_see_the_leader(fixture: &Fixture) {
    let (ours, theirs) = (fixture.one.election("election/1"), fixture.two.election("election/1"));
    assert_eq!(ours.leader().await.unwrap(), None);
    let first = within_limit("the first", ours.campaign("ann")).await.unwrap();
    assert!(theirs.try_campaign("ben").await.unwrap().is_none());
    let limit = Duration::from_millis(100);
    assert_not_granted(limit, theirs.try_campaign_for("ben", limit)).await;
    let seen = theirs.leader().await.unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.fence), ("ann", first.fence()));
    let (next, resigned) = tokio::join!(within_limit("the next", theirs.campaign("ben")), first.resign());
    let next = next.unwrap();
    resigned.unwrap();
    assert!(next.fence() > seen.fence || !fixture.has_fences());
    assert_eq!(value(ours.leader().await.unwrap()).as_deref(), Some("ben"));
    next.resign().await.unwrap();
    assert_eq!(ours.leader().await.unwrap(), None);
    let long = "x".repeat(981);
    assert_eq!(ours.campaign(&long).await.map(drop).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(theirs.leader().await.unwrap(), None, "no client leads by a value that is refused");
}

async fn proclaimed_value_is_seen_only_while_its_leader_leads(fixture: &Fixture) {
    let (ours, theirs) = (fixture.one.election("election/2"), fixture.two.election("election/2"));
    let leadership = within_limit("to lead", ours.campaign("at first")).await.unwrap();
    if !fixture.admits(LockSupport::SharedExclusive) {
        assert_unsupported(leadership.proclaim("second").await);
        assert_eq!(value(theirs.leader().await.unwrap()).as_deref(), Some("at first"));
        return leadership.resign().await.unwrap();
    }
    for value_text in ["second", "third", "with spaces in it", ""] {
        leadership.proclaim(value_text).await.unwrap();
        assert_eq!(value(theirs.leader().await.unwrap()).as_deref(), Some(value_text));
    }
    drop(leadership);
    let next = within_limit("to lead", theirs.campaign("other")).await.unwrap();
    assert_eq!(value(ours.leader().await.unwrap()).as_deref(), Some("other"));
    next.resign().await.unwrap();
}

async fn observer_is_notified_of_each_change(fixture: &Fixture) {
    let mut observer = fixture.two.election("election/3").observe();
    let election = fixture.one.election("election/3");
    assert_eq!(within_limit("no leader", observer.next()).await.unwrap(), None);
    // An observer that leaves a question loses nothing.
    assert!(tokio::time::timeout(Duration::from_millis(20), observer.next()).await.is_err());
    let leadership = within_limit("to lead", election.campaign("ann")).await.unwrap();
    assert_eq!(value(within_limit("ann", observer.next()).await.unwrap()).as_deref(), Some("ann"));
    if fixture.admits(LockSupport::SharedExclusive) {
        leadership.proclaim("ann, again").await.unwrap();
        assert_eq!(
            value(within_limit("again", observer.next()).await.unwrap()).as_deref(),
            Some("ann, again")
        );
    }
    leadership.resign().await.unwrap();
    assert_eq!(within_limit("no leader", observer.next()).await.unwrap(), None);
}
