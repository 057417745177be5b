//! Revocation: the present holder is notified, even if the client that asked is gone, and a later holder
//! is not.

use futures_util::FutureExt;

use crate::ground::{Ground, LIMIT, LIVING, Part, Primitive, TTL, assert_unsupported, soon};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "revocation",
    rules: |ground| rules(ground).boxed(),
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
            around: |ground, victim| an_asker_dies(ground, victim).boxed(),
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
            around: |ground, victim| a_holder_dies(ground, victim).boxed(),
        },
    ],
};

async fn an_asker_dies(ground: &Ground, victim: Victim) {
    if !ground.keeps_values() {
        return;
    }
    let (name, step) = (victim.name(), victim.step());
    let guard = ground.one.mutex(&name).ttl(LIVING).lock().await.unwrap();
    victim.dies().await;
    if step == 0 {
        // The dead client may have asked or not.
        ground.two.revoke(&name, "of the living one").await.unwrap();
    }
    let heard = soon("to hear of it", guard.revoked()).await.unwrap();
    assert!(step == 0 || heard.reason == "of the dead one", "{heard:?}");
    guard.release().await.unwrap();
}

async fn a_holder_dies(ground: &Ground, victim: Victim) {
    if !ground.keeps_values() {
        return;
    }
    let name = victim.name();
    let asking = async {
        ground.held(&name).await;
        ground.one.revoke(&name, "of the dead one").await.unwrap();
    };
    let mut dying = tokio::spawn(victim.dies());
    tokio::select! {
        () = asking => dying.await.unwrap(),
        // The dead process may have died before it held the lock.
        dead = &mut dying => dead.unwrap(),
    }
    let guard = ground.one.mutex(&name).ttl(LIVING).try_lock_for(LIMIT).await.unwrap().unwrap();
    ground.two.revoke(&name, "of the next one").await.unwrap();
    assert_eq!(soon("to hear of it", guard.revoked()).await.unwrap().reason, "of the next one");
    guard.release().await.unwrap();
}

async fn rules(ground: &Ground) {
    let name = "revocation/rules";
    let guard = ground.one.mutex(name).ttl(LIVING).lock().await.unwrap();
    if !ground.keeps_values() {
        assert_unsupported(guard.revoked().await);
        assert_unsupported(ground.two.revoke(name, "why").await);
        return guard.release().await.unwrap();
    }
    let asking = async {
        tokio::task::yield_now().await;
        ground.two.revoke(name, "another one needs it").await.unwrap()
    };
    let (heard, asked) = tokio::join!(soon("to hear of it", guard.revoked()), asking);
    assert_eq!(heard.unwrap().reason, "another one needs it");
    assert_eq!(asked.iter().map(|one| one.id.tag()).collect::<Vec<_>>(), [guard.tag()]);
    // It is only a request: the holder decides whether to release.
    guard.check().unwrap();
    guard.release().await.unwrap();
    let next = ground.two.mutex(name).ttl(LIVING).lock().await.unwrap();
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), next.revoked()).await;
    assert!(early.is_err(), "a later holder was not asked: {early:?}");
    next.release().await.unwrap();
    assert_eq!(ground.one.revoke(name, "nobody").await.unwrap().len(), 0);
}
