//! No wake-up is lost by the death of a waiter or of a notifier, at any request.

use futures_util::FutureExt;
use leasehold::Client;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::mortal::{Role, TTL, at_each_request, says, soon};

pub(crate) const WAITER: Role =
    Role { name: "condition-waiter", play: |locks, name| wait(locks, name).boxed() };
pub(crate) const NOTIFIER: Role =
    Role { name: "condition-notifier", play: |locks, name| notify(locks, name).boxed() };

async fn wait(locks: &Client, name: &str) {
    let guard = locks.mutex(name).ttl(TTL).lock().await.unwrap();
    // On a busy machine a lease of a second may be over before.
    if let Ok(guard) = guard.wait(&locks.condition(name).ttl(TTL)).await {
        says("woken");
        let _ = guard.release().await;
    }
}

async fn notify(locks: &Client, name: &str) {
    let guard = locks.mutex(name).ttl(TTL).lock().await.unwrap();
    if guard.notify_one(&locks.condition(name).ttl(TTL)).await.is_ok() {
        let _ = guard.release().await;
    }
}

/// Starts a live waiter, and returns its task and a message that it has the lock: the next holder of the
/// lock finds it waiting.
fn waiter(locks: &Client, name: &str) -> (JoinHandle<()>, oneshot::Receiver<()>) {
    let (mutex, condition) = (locks.mutex(name), locks.condition(name).ttl(TTL));
    let (lock_sender, has_lock) = oneshot::channel();
    let waiting = tokio::spawn(async move {
        let guard = mutex.lock().await.unwrap();
        let _ = lock_sender.send(());
        guard.wait(&condition).await.unwrap().release().await.unwrap();
    });
    (waiting, has_lock)
}

/// A waiter dies: the one notification goes to the other waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_dies_at_each_step() {
    at_each_request(&WAITER, 30, 12, |locks, name, mut player| async move {
        let (mutex, condition) = (locks.mutex(&name), locks.condition(&name).ttl(TTL));
        // The player comes first, if it comes at all.
        player.holds(&locks, &format!("{name}!waiting")).await;
        let (other, has_lock) = waiter(&locks, &name);
        has_lock.await.unwrap();
        let notify = || async {
            let guard = soon("lock", mutex.lock()).await.unwrap();
            guard.notify_one(&condition).await.unwrap();
            guard.release().await.unwrap();
        };
        notify().await;
        let killed = player.is_killed().await;
        if player.said("woken") {
            // The player used the notification, whether or not it lived to the end; the other waiter
            // still needs one.
            notify().await;
        }
        soon("the other waiter", other).await.unwrap();
        killed
    })
    .await;
}

/// A notifier dies: the next notifier wakes the waiter, and the notification of the first was complete
/// or not made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notifier_dies_at_each_step() {
    at_each_request(&NOTIFIER, 14, 6, |locks, name, mut player| async move {
        let (mutex, condition) = (locks.mutex(&name), locks.condition(&name).ttl(TTL));
        let (waiting, has_lock) = waiter(&locks, &name);
        let killed = player.is_killed().await;
        // The player may have notified before the waiter waited, so the waiter is notified once more.
        has_lock.await.unwrap();
        let guard = soon("lock", mutex.lock()).await.unwrap();
        guard.notify_one(&condition).await.unwrap();
        guard.release().await.unwrap();
        soon("the waiter", waiting).await.unwrap();
        killed
    })
    .await;
}
