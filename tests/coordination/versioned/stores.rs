//! Optimistic updates: none is lost, even if a process dies in the middle of one; a store without values
//! refuses them.

use std::time::Duration;

use futures_util::FutureExt;
use leasehold::Versioned;

use crate::fixture::{Fixture, LIMIT, Part, Primitive, assert_unsupported, within_limit};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "versioned",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[Part {
        name: "updater",
        steps: 3,
        play: |stage, locks, name| {
            async move {
                let value = locks.versioned(name);
                stage.at("has done nothing").await;
                let change = |old: Option<&[u8]>| {
                    stage.blocking("is asked what to write");
                    Some(plus_one(old))
                };
                value.update(change).await?;
                stage.at("has written").await;
                Ok(())
            }
            .boxed()
        },
        around: |fixture, victim| somebody_dies(fixture, victim).boxed(),
    }],
};

pub(super) fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| str::from_utf8(bytes).unwrap().parse().unwrap())
}

pub(super) fn plus_one(bytes: Option<&[u8]>) -> Vec<u8> {
    (number(bytes) + 1).to_string().into_bytes()
}

async fn add_one(value: &Versioned) -> leasehold::UpdateOutcome {
    within_limit("to add one", value.update(|old| Some(plus_one(old)))).await.unwrap()
}

async fn somebody_dies(fixture: &Fixture, victim: Victim) {
    if !fixture.keeps_values() {
        return;
    }
    let value = fixture.one.versioned(victim.name());
    add_one(&value).await;
    // The closure runs once, as there is no conflict: the second step is within the closure, the third
    // after the write.
    let step = victim.step();
    victim.dies().await;
    let seen = number(value.read().await.unwrap().value());
    assert_eq!(seen, if step < 2 { 1 } else { 2 });
    assert_eq!(number(add_one(&value).await.value.as_deref()), seen + 1);
}

async fn rules(fixture: &Fixture) {
    let (ours, theirs) = (fixture.one.versioned(NAME), fixture.two.versioned(NAME));
    if !fixture.keeps_values() {
        let error = ours.update(|old| Some(plus_one(old))).await.unwrap_err();
        assert!(error.to_string().contains("keeps no values"), "{error}");
        assert_unsupported::<()>(Err(error));
        return assert_unsupported(ours.read().await);
    }
    let seen = ours.read().await.unwrap();
    assert_eq!(seen.value(), None);
    no_update_is_lost(fixture).await;
    let now = within_limit("a change", theirs.changed(&seen, LIMIT)).await.unwrap();
    assert_eq!(number(now.value()), CLIENTS * UPDATES);
    let (changed, removed) = tokio::join!(theirs.changed(&now, LIMIT), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        within_limit("to remove", ours.update(|_| None)).await
    });
    assert_eq!((changed.unwrap().value(), removed.unwrap().value), (None, None));
    assert_eq!(ours.read().await.unwrap().value(), None);
    assert_eq!(within_limit("nothing to remove", ours.update(|_| None)).await.unwrap().value, None);
    let mut written = Vec::new();
    for _ in 0..2 {
        add_one(&theirs).await;
        written.push(ours.read().await.unwrap());
        within_limit("to remove", ours.update(|_| None)).await.unwrap();
    }
    assert_eq!(written[0].value(), written[1].value());
    assert_ne!(written[0], written[1], "another writing of the same value is another state");
}

async fn no_update_is_lost(fixture: &Fixture) {
    let mut tasks = Vec::new();
    for number in 1..=CLIENTS {
        let locks = fixture.another().await;
        tasks.push(tokio::spawn(async move {
            // The last one goes the pessimistic way, and is in the others' way all the same.
            let value = locks.versioned(NAME);
            let value = if number == CLIENTS { value.escalate_after(0) } else { value };
            for _ in 0..UPDATES {
                add_one(&value).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

const NAME: &str = "versioned/ü";
const CLIENTS: u64 = 4;
const UPDATES: u64 = 8;
