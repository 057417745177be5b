//! A lock in segments: a key's own, any that is free, or all of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{ErrorKind, Leasehold};

async fn memory() -> Leasehold {
    Leasehold::open("mem:").await.unwrap()
}

#[tokio::test]
async fn a_key_has_one_segment_and_each_segment_is_an_ordinary_mutex() {
    let locks = memory().await;
    let stock = locks.segmented("stock", 12);
    let segment = stock.of("customer/7");
    let guard = segment.lock().await.unwrap();
    assert_eq!(guard.resource().as_str(), format!("stock#{}", segment.number()));
    assert!(stock.of("customer/7").try_lock().await.unwrap().is_none());
    assert!(locks.mutex(&format!("stock#{}", segment.number())).try_lock().await.unwrap().is_none());
    let refusal = segment.lock_timeout(Duration::from_millis(10)).await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn any_takes_what_is_free_and_waits_where_nothing_is() {
    let locks = memory().await;
    let stock = locks.segmented("stock", 4).with(|mutex| mutex.ttl(Duration::from_secs(9)));
    let mut guards = Vec::new();
    for _ in 0..4 {
        guards.push(stock.any().await.unwrap());
    }
    let mut names: Vec<_> = guards.iter().map(|guard| guard.resource().as_str().to_owned()).collect();
    names.sort_unstable();
    assert_eq!(names, ["stock#0", "stock#1", "stock#2", "stock#3"]);
    assert!(stock.try_any().await.unwrap().is_none());
    let refusal = stock.any_timeout(Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Timeout);

    let waiter = tokio::spawn({
        let stock = stock.clone();
        async move { stock.any().await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    guards.clear();
    let guard = tokio::time::timeout(Duration::from_secs(20), waiter).await.unwrap().unwrap().unwrap();
    guard.release().await.unwrap();
    let whole = tokio::time::timeout(Duration::from_secs(20), stock.all().lock()).await.unwrap().unwrap();
    assert_eq!(whole.guards().len(), 4, "nothing was left behind by those who waited at two segments");
}

#[tokio::test]
async fn one_segment_alone_works_as_a_mutex() {
    let locks = memory().await;
    let stock = locks.segmented("stock", 0);
    assert_eq!(stock.count(), 1);
    let guard = stock.any().await.unwrap();
    assert!(stock.try_any().await.unwrap().is_none());
    let waiter = stock.any();
    let freed = async { guard.release().await };
    let (next, freed) = tokio::join!(waiter, freed);
    assert!(next.is_ok() && freed.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sold_twice_and_the_report_tells_who_waited() {
    let locks = memory().await;
    let stock = locks.segmented("stock", 3);
    let left: Arc<Vec<AtomicU32>> = Arc::new((0..3).map(|_| AtomicU32::new(40)).collect());
    let mut buyers = Vec::new();
    for buyer in 0..200 {
        let (stock, left) = (stock.clone(), left.clone());
        buyers.push(tokio::spawn(async move {
            let segment = stock.of(format!("buyer/{buyer}"));
            let guard = segment.lock().await.unwrap();
            let pieces = &left[segment.number() as usize];
            // Read, wait, write: sold twice unless the lock holds.
            let seen = pieces.load(Ordering::SeqCst);
            tokio::task::yield_now().await;
            let sold = seen > 0;
            if sold {
                pieces.store(seen - 1, Ordering::SeqCst);
            }
            guard.release().await.unwrap();
            u32::from(sold)
        }));
    }
    let mut sold = 0;
    for buyer in buyers {
        sold += buyer.await.unwrap();
    }
    let rest: u32 = left.iter().map(|pieces| pieces.load(Ordering::SeqCst)).sum();
    assert_eq!(sold + rest, 120);
    let report = stock.report();
    assert_eq!(report.segments.iter().map(|segment| segment.taken).sum::<u64>(), 200);
    assert!(report.contention() > 0.0 && report.recommended().unwrap() > 3, "{report}");
}
