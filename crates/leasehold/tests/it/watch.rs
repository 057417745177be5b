//! `Client::watch`: the states of a resource as a stream.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold::{Client, ErrorKind};

#[tokio::test]
async fn stream_shows_the_present_state_and_each_later_one() {
    let locks = Client::open("mem:").await.unwrap();
    let mut states = locks.watch("job");
    assert!(states.next().await.unwrap().unwrap().holders.is_empty());
    let guard = locks.mutex("job").lock().await.unwrap();
    assert_eq!(states.next().await.unwrap().unwrap().holders.len(), 1);
    // Nothing has changed, so nothing comes.
    tokio::time::timeout(Duration::from_millis(300), states.next()).await.unwrap_err();
    guard.release().await.unwrap();
    assert!(states.next().await.unwrap().unwrap().holders.is_empty());
}

#[tokio::test]
async fn stream_ends_after_an_error_that_stays() {
    let locks = Client::open("mem:").await.unwrap();
    let mut states = locks.watch("");
    assert_eq!(states.next().await.unwrap().unwrap_err().kind(), ErrorKind::Invalid);
    assert!(states.next().await.is_none());

    let mut states = locks.watch("job");
    states.next().await.unwrap().unwrap();
    assert!(locks.close(Duration::from_secs(60)).await);
    assert_eq!(states.next().await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(states.next().await.is_none());
}
