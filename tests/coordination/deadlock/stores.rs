//! Deadlocks: of the claims that wait for each other one gets the error, and the others continue; no
//! other claim gets it; and a dead process no longer takes part in a deadlock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use leasehold::{Client, ErrorKind, Guard, LockSupport, Mutex, Note, Owner, Result};
use tokio::sync::Barrier;

use crate::fixture::{Fixture, LIMIT, Part, Primitive, TTL, assert_unsupported, within_limit};
use crate::player::{Stage, Victim};

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "deadlock",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[Part {
        name: "party",
        steps: 2,
        play: |stage, locks, name| plays(stage, locks, name).boxed(),
        around: |fixture, victim| somebody_dies(fixture, victim).boxed(),
    }],
};

/// The time after which the detector checks a wait.
const SOON: Duration = Duration::from_millis(200);

fn mutex(locks: &Client, name: &str, owner: &Owner) -> Mutex {
    locks.mutex(name).owner(owner).detect_deadlocks(SOON)
}

/// Continues to wait even after the deadlock error, and keeps what it holds: a deadlock that no party
/// resolves.
async fn insists(mutex: Mutex) -> Result<Option<Guard>> {
    match mutex.try_lock_for(LIMIT).await {
        Err(error) if error.kind() == ErrorKind::Deadlock => {
            mutex.detect_deadlocks(LIMIT * 2).try_lock_for(LIMIT).await
        }
        outcome => outcome,
    }
}

async fn plays(stage: &Stage, locks: &Client, name: &str) -> Result<()> {
    let me = Owner::new();
    let one = mutex(locks, &format!("{name}/one"), &me).ttl(TTL).lock().await?;
    stage.at("holds one").await;
    let other = mutex(locks, &format!("{name}/other"), &me).ttl(TTL);
    let other =
        stage.during("waits for the other", insists(other)).await?.expect("the other is free in time");
    other.release().await?;
    one.release().await
}

async fn somebody_dies(fixture: &Fixture, victim: Victim) {
    if !is_carried_by(fixture) {
        return;
    }
    let (name, me) = (victim.name(), Owner::new());
    let (one, other) = (format!("{name}/one"), format!("{name}/other"));
    let held = match victim.step() {
        1 => Some(mutex(&fixture.one, &other, &me).lock().await.unwrap()),
        _ => None,
    };
    let survives = victim.survives();
    let dying = victim.reaches_its_end().await;
    let taking = insists(mutex(&fixture.one, &one, &me));
    let (taken, ()) = tokio::join!(taking, dying.killed());
    taken.unwrap().unwrap().release().await.unwrap();
    drop(held);
    if !survives {
        let seen = async { while !fixture.two.deadlocks().await.unwrap().is_empty() {} };
        within_limit("the end of the circle", seen).await;
    }
}

fn is_carried_by(fixture: &Fixture) -> bool {
    fixture.one.profile().note_max >= Note::MAX_BYTES
}

async fn rules(fixture: &Fixture) {
    if !is_carried_by(fixture) {
        assert_unsupported(mutex(&fixture.one, "deadlock/0", &Owner::new()).lock().await);
        return assert_unsupported(fixture.one.deadlocks().await);
    }
    // Two of the three are tasks of one client.
    let (two, three) = ([&fixture.one, &fixture.two], [&fixture.one, &fixture.two, &fixture.one]);
    tokio::join!(
        one_wait_of_a_cycle_is_ended(fixture, "deadlock/1", &two),
        one_wait_of_a_cycle_is_ended(fixture, "deadlock/2", &three),
        no_wait_of_a_chain_is_ended(fixture, "deadlock/3"),
        no_wait_is_ended_if_a_permit_becomes_free(fixture, "deadlock/4"),
    );
}

/// Each party acquires one lock, and once all have theirs, requests that of the next party.
async fn one_wait_of_a_cycle_is_ended(fixture: &Fixture, name: &str, clients: &[&Client]) {
    let all_have_one = Arc::new(Barrier::new(clients.len()));
    let parties = clients.iter().enumerate().map(|(number, locks)| {
        let all_have_one = all_have_one.clone();
        async move {
            let me = Owner::new();
            let note = Note::new(&format!("party {number}")).unwrap();
            let of = |number: usize| {
                mutex(locks, &format!("{name}/{}", number % clients.len()), &me).note(note.clone())
            };
            let own = within_limit("the first", of(number).lock()).await.unwrap();
            all_have_one.wait().await;
            let asked = within_limit("an answer", of(number + 1).lock()).await;
            own.check().unwrap();
            own.release().await.unwrap();
            match asked {
                Ok(next) => {
                    next.release().await.unwrap();
                    None
                }
                Err(error) => Some(error),
            }
        }
    });
    let errors: Vec<_> = join_all(parties).await.into_iter().flatten().collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].kind(), ErrorKind::Deadlock, "{}", errors[0]);
    for number in 0..clients.len() {
        let text = errors[0].to_string();
        assert!(text.contains(&format!("\"party {number}\" holds {name}/{number} ")), "{text}");
        fixture.free(&format!("{name}/{number}")).await;
    }
}

/// A chain without a deadlock: one waits for one that waits for one that is busy, for long enough that
/// all have checked.
async fn no_wait_of_a_chain_is_ended(fixture: &Fixture, name: &str) {
    let (ann, ben, cid) = (Owner::new(), Owner::new(), Owner::new());
    let of = |locks: &Client, number: u32, owner: &Owner| mutex(locks, &format!("{name}/{number}"), owner);
    let first = of(&fixture.one, 1, &ann).lock().await.unwrap();
    let second = of(&fixture.two, 2, &ben).lock().await.unwrap();
    let third = of(&fixture.one, 3, &cid).lock().await.unwrap();
    let ann_works = async {
        tokio::time::sleep(SOON * 6).await;
        first.release().await.unwrap();
    };
    let ben_waits = async {
        of(&fixture.two, 1, &ben).lock().await.unwrap().release().await.unwrap();
        second.release().await.unwrap();
    };
    let cid_waits = async {
        of(&fixture.one, 2, &cid).lock().await.unwrap().release().await.unwrap();
        third.release().await.unwrap();
    };
    within_limit("a chain", async { tokio::join!(ann_works, ben_waits, cid_waits) }).await;
}

/// Of two permits, one belongs to a holder that waits for the client that wants a permit, and the other
/// to one that does not wait.
async fn no_wait_is_ended_if_a_permit_becomes_free(fixture: &Fixture, name: &str) {
    if !fixture.admits(LockSupport::Counted) {
        return;
    }
    let (ann, ben, cid) = (Owner::new(), Owner::new(), Owner::new());
    let permits = |locks: &Client, owner: &Owner| {
        locks.semaphore(format!("{name}/permits"), 2).owner(owner).detect_deadlocks(SOON)
    };
    let other = format!("{name}/other");
    let has_ann = permits(&fixture.one, &ann).acquire().await.unwrap();
    let has_ben = mutex(&fixture.two, &other, &ben).lock().await.unwrap();
    let has_cid = permits(&fixture.one, &cid).acquire().await.unwrap();
    let ann_waits = async {
        mutex(&fixture.one, &other, &ann).lock().await.unwrap().release().await.unwrap();
        has_ann.release().await.unwrap();
    };
    let ben_waits = async {
        permits(&fixture.two, &ben).acquire().await.unwrap().release().await.unwrap();
        has_ben.release().await.unwrap();
    };
    let cid_works = async {
        tokio::time::sleep(SOON * 6).await;
        has_cid.release().await.unwrap();
    };
    within_limit("a free permit", async { tokio::join!(ann_waits, ben_waits, cid_works) }).await;
}
