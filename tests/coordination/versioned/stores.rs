//! Optimistic updates: none is lost, even if a process dies in the middle of one; a store without values
//! refuses them.

use futures_util::FutureExt;
use leasehold::Versioned;

use crate::fixture::{Fixture, Part, Primitive, assert_unsupported, within_limit};
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

fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| str::from_utf8(bytes).unwrap().parse().unwrap())
}

fn plus_one(bytes: Option<&[u8]>) -> Vec<u8> {
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
    let (ours, theirs) = (fixture.one.versioned("versioned/1"), fixture.two.versioned("versioned/1"));
    if !fixture.keeps_values() {
        return assert_unsupported(ours.read().await);
    }
    assert_eq!(ours.read().await.unwrap().value(), None);
    let seen = ours.read().await.unwrap();
    let mut tasks = Vec::new();
    for value in [ours.clone(), theirs.clone(), ours.clone(), theirs.clone()] {
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                add_one(&value).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let now = within_limit("a change", theirs.changed(&seen, crate::fixture::LIMIT)).await.unwrap();
    assert_eq!(number(now.value()), 20);
    assert_eq!(within_limit("to remove", ours.update(|_| None)).await.unwrap().value, None);
    assert_eq!(theirs.read().await.unwrap().value(), None);
    add_one(&theirs).await;
    within_limit("to remove", ours.update(|_| None)).await.unwrap();
}
