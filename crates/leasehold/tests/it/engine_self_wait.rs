//! A task that waits for a lock that it holds itself is warned of, on any executor.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Store, ms};
use leasehold::Client;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Counts the warnings of this kind.
#[derive(Clone, Default)]
struct Log(Arc<AtomicUsize>);

impl Log {
    fn warnings(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Reader(self));
    }
}

struct Reader<'a>(&'a Log);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        if format!("{value:?}").contains("a lock that it holds itself") {
            self.0.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

async fn waits_for_itself(locks: &Client) {
    let mutex = locks.mutex("job");
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock_for(ms(20)).await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[test]
fn task_that_waits_for_itself_is_warned() {
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (locks, _) = Store::new().client();
        waits_for_itself(&locks).await;
        assert_eq!(log.warnings(), 1, "in what `block_on` drives");
        let spawned = locks.clone();
        tokio::spawn(async move { waits_for_itself(&spawned).await }).await.unwrap();
        assert_eq!(log.warnings(), 2, "in a task");
        let guard = locks.mutex("job").lock().await.unwrap();
        let handed = locks.clone();
        let next = tokio::spawn(async move {
            let guard = handed.mutex("job").lock().await.unwrap();
            assert!(handed.mutex("job").try_lock_for(ms(20)).await.unwrap().is_none());
            drop(guard);
        });
        tokio::time::sleep(ms(20)).await;
        guard.release().await.unwrap();
        next.await.unwrap();
        assert_eq!(log.warnings(), 3, "in a task to which it was handed off");
        // Two tasks wait for each other's end, and neither for itself.
        let guard = locks.mutex("job").lock().await.unwrap();
        let other = locks.mutex("job");
        let waits = tokio::spawn(async move { other.try_lock_for(ms(20)).await });
        assert!(waits.await.unwrap().unwrap().is_none());
        drop(guard);
        assert_eq!(log.warnings(), 3, "of another task");
    });
}
