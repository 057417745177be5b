//! Revocation: the present holder is notified, even if the client that asked is gone, and a later holder
//! is not.

use futures_util::FutureExt;

use crate::fixture::{Fixture, LIMIT, LIVING, Part, Primitive, TTL, assert_unsupported, within_limit};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "revocation",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[
        Part {
            name: "asker",
            steps: 2,
            play: |stage, locks, name| {
                async move {
                    stage.during("asks", locks.revoke(name, "of the dead one")).await?;
                    stage.at("has asked").await;
                    Ok(())
                }
                .boxed()
            },
            around: |fixture, victim| an_asker_dies(fixture, victim).boxed(),
        },
        Part {
            name: "holder",
            steps: 3,
            play: |stage, locks, name| {
                async move {
                    let guard = stage.during("locks", locks.mutex(name).ttl(TTL).lock()).await?;
                    stage.during("listens", guard.revoked()).await?;
                    stage.during("releases", guard.release()).await
                }
                .boxed()
            },
            around: |fixture, victim| a_holder_dies(fixture, victim).boxed(),
        },
    ],
};

async fn an_asker_dies(fixture: &Fixture, victim: Victim) {
    if !fixture.keeps_values() {
        return;
    }
    let (name, step) = (victim.name(), victim.step());
    let guard = fixture.one.mutex(&name).ttl(LIVING).lock().await.unwrap();
    victim.dies().await;
    if step == 0 {
        // The dead client may have asked or not.
        fixture.two.revoke(&name, "of the living one").await.unwrap();
    }
    let revocation = within_limit("to hear of it", guard.revoked()).await.unwrap();
    assert!(step == 0 || revocation.reason == "of the dead one", "{revocation:?}");
    guard.release().await.unwrap();
}

async fn a_holder_dies(fixture: &Fixture, victim: Victim) {
    if !fixture.keeps_values() {
        return;
    }
    let name = victim.name();
    let asking = async {
        fixture.held(&name).await;
        fixture.one.revoke(&name, "of the dead one").await.unwrap();
    };
    let mut dying = tokio::spawn(victim.dies());
    tokio::select! {
        () = asking => dying.await.unwrap(),
        // The dead process may have died before it held the lock.
        dead = &mut dying => dead.unwrap(),
    }
    let guard = fixture.one.mutex(&name).ttl(LIVING).try_lock_for(LIMIT).await.unwrap().unwrap();
    fixture.two.revoke(&name, "of the next one").await.unwrap();
    assert_eq!(within_limit("to hear of it", guard.revoked()).await.unwrap().reason, "of the next one");
    guard.release().await.unwrap();
}

async fn rules(fixture: &Fixture) {
    let name = "revocation/rules";
    let guard = fixture.one.mutex(name).ttl(LIVING).lock().await.unwrap();
    if !fixture.keeps_values() {
        assert_unsupported(guard.revoked().await);
        assert_unsupported(fixture.two.revoke(name, "why").await);
        return guard.release().await.unwrap();
    }
    let asking = async {
        tokio::task::yield_now().await;
        fixture.two.revoke(name, "another one needs it").await.unwrap()
    };
    let (revocation, asked) = tokio::join!(within_limit("to hear of it", guard.revoked()), asking);
    assert_eq!(revocation.unwrap().reason, "another one needs it");
    assert_eq!(asked.iter().map(|one| one.id.tag()).collect::<Vec<_>>(), [guard.tag()]);
    // It is only a request: the holder decides whether to release.
    guard.check().unwrap();
    guard.release().await.unwrap();
    let next = fixture.two.mutex(name).ttl(LIVING).lock().await.unwrap();
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), next.revoked()).await;
    assert!(early.is_err(), "a later holder was not asked: {early:?}");
    next.release().await.unwrap();
    assert_eq!(fixture.one.revoke(name, "nobody").await.unwrap().len(), 0);
}
