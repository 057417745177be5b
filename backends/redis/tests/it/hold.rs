//! Taking, renewing, releasing and looking, on a server that behaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use leasehold_core::{Backend, Durability, FenceGrade, Note, QueueOrder, Share, WaitMode};
use leasehold_testkit::{RedisServer, Reply};

#[tokio::test]
async fn a_mutex_has_one_holder_and_fences_rise() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let (a, b) = (mutex("job"), mutex("job"));
    let first = try_take(&backend, &a).await.unwrap();
    assert_eq!(try_take(&backend, &b).await, None);
    assert_eq!(try_take(&backend, &a).await, Some(first), "the same claim is granted the same");
    assert!(renewed(&backend, &a).await && !renewed(&backend, &b).await);
    assert!(!freed(&backend, &b).await && freed(&backend, &a).await && !freed(&backend, &a).await);
    assert!(!renewed(&backend, &a).await, "what is released stays released");
    let second = try_take(&backend, &b).await.unwrap();
    assert!(second > first);
    assert_eq!(try_take(&backend, &a).await, None);
}

#[tokio::test]
async fn shares_go_together_while_they_fit() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let two = Share::permits(2, 3).unwrap();
    let one = Share::permits(1, 3).unwrap();
    let claims: Vec<_> = [two, two, one, one].map(|share| claim_of("pool", share, TTL)).into();
    let mut granted = Vec::new();
    for claim in &claims {
        granted.push(try_take(&backend, claim).await.is_some());
    }
    assert_eq!(granted, [true, false, true, false]);

    let readers: Vec<_> = (0..40).map(|_| claim_of("page", Share::READER, TTL)).collect();
    let writer = claim_of("page", Share::WRITER, TTL);
    for reader in &readers {
        assert!(try_take(&backend, reader).await.is_some());
        assert!(try_take(&backend, &writer).await.is_none());
    }
    for reader in &readers {
        assert!(freed(&backend, reader).await);
    }
    assert!(try_take(&backend, &writer).await.is_some());
    assert!(try_take(&backend, &readers[0]).await.is_none());
}

/// More holders than are read each time are counted in one field, which is renewed by each grant and release.
#[tokio::test]
async fn many_holders_are_counted_in_one_field() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let readers: Vec<_> = (0..20).map(|_| claim_of("page", Share::READER, TTL * 60)).collect();
    let counted = async || match server.command(&["HGET", "{lh:page}:claims", "load"]).await.unwrap() {
        Reply::Nil => None,
        stored => stored.into_text().unwrap().split_once(" :").map(|(count, _)| count.to_owned()),
    };
    let expected = |seq: u64, count: usize| (count > 16).then(|| format!("{seq} {count}"));
    let mut last = 0;
    for (number, reader) in readers.iter().enumerate() {
        last = try_take(&backend, reader).await.unwrap().seq;
        assert_eq!(counted().await, expected(last, number + 1));
    }
    for (number, reader) in readers.iter().enumerate() {
        assert!(freed(&backend, reader).await);
        assert_eq!(counted().await, expected(last, 19 - number));
    }
}

#[tokio::test]
async fn a_share_is_fixed_when_it_is_first_asked_for() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let holder = mutex("job");
    let waiter = claim_of("job", Share::permits(1, 5).unwrap(), TTL);
    assert!(try_take(&backend, &holder).await.is_some());
    backend.contend(&waiter, &endless()).await.unwrap();
    let changed = waiter.clone().share(Share::MUTEX);
    backend.contend(&changed, &endless()).await.unwrap();
    let seen = backend.inspect(&holder.resource, None, &no_patience()).await.unwrap();
    assert_eq!(seen.waiting.iter().map(|info| info.share).collect::<Vec<_>>(), [waiter.share]);
    assert!(freed(&backend, &holder).await);
    let fence = try_take(&backend, &changed).await.unwrap();
    assert_eq!(try_take(&backend, &changed).await, Some(fence));
    assert!(renewed(&backend, &changed).await && freed(&backend, &changed).await);
    assert!(try_take(&backend, &holder).await.is_some());
}

#[tokio::test]
async fn a_lease_is_extended_and_never_shortened() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    // A request may take as long as the shortest of them, and a renewal a third of that.
    let ttl = TTL * 6;
    let claim = mutex("job").ttl(ttl);
    let short = claim.clone().ttl(ttl / 6);
    let long = claim.clone().ttl(ttl * 3);
    let left = async || {
        let seen = backend.inspect(&claim.resource, None, &no_patience()).await.unwrap();
        seen.holders[0].remaining.unwrap()
    };
    let fence = try_take(&backend, &claim).await;
    assert_eq!(try_take(&backend, &short).await, fence);
    assert!(renewed(&backend, &short).await && left().await > ttl / 2);
    assert_eq!(try_take(&backend, &long).await, fence);
    assert!(left().await > ttl * 2);
    assert!(renewed(&backend, &claim).await && left().await > ttl * 2);
}

#[tokio::test]
async fn a_lease_ends_by_itself_and_leaves_only_the_fence() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    // A request may take as long as the lease.
    let a = claim_of("job", Share::MUTEX, Duration::from_secs(4));
    let b = mutex("job");
    let first = try_take(&backend, &a).await.unwrap();
    tokio::time::sleep(Duration::from_millis(4_100)).await;
    assert!(!still_held(&backend, &a).await, "an ended lease is not resurrected");
    let second = try_take(&backend, &b).await.unwrap();
    assert!(second > first && freed(&backend, &b).await);
    let third = try_take(&backend, &a).await.unwrap();
    assert!(third > second);
    let begun = Instant::now();
    let only_the_fence = Reply::Many(vec![Reply::Bytes(b"{lh:job}:fence".to_vec())]);
    while server.command(&["KEYS", "*"]).await.unwrap() != only_the_fence {
        assert!(begun.elapsed() < LIMIT, "{:?}", server.command(&["KEYS", "*"]).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(backend.list("", None, 10).await.unwrap(), []);
}

#[tokio::test]
async fn names_of_every_kind_are_apart() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let long = "x".repeat(512);
    let other = format!("{}y", "x".repeat(511));
    let umlauts = "ü".repeat(256);
    let names =
        ["a", "A", "{a}", "}x", "a b", "%41", "~", "é", "*", "a?[b]\\^", &long, &other, &umlauts, "日本"];
    for name in names {
        let (holder, rival) = (mutex(name), mutex(name));
        assert!(try_take(&backend, &holder).await.is_some(), "{name}");
        assert!(try_take(&backend, &rival).await.is_none(), "{name}");
        let seen = backend.inspect(&holder.resource, None, &no_patience()).await.unwrap();
        assert_eq!(seen.holders[0].id, holder.id, "{name}");
    }
    let mut sorted: Vec<_> = names.iter().map(|name| resource(name)).collect();
    sorted.sort();
    let listed = backend.list("", None, 100).await.unwrap();
    assert_eq!(listed.iter().map(|summary| summary.resource.clone()).collect::<Vec<_>>(), sorted);
    let of = |prefix: &'static str, after: Option<&'static str>, limit| {
        let after = after.map(resource);
        let backend = &backend;
        async move {
            let list = backend.list(prefix, after.as_ref(), limit).await.unwrap();
            list.into_iter().map(|summary| summary.resource.as_str().to_owned()).collect::<Vec<_>>()
        }
    };
    assert_eq!(of("a", None, 10).await, ["a", "a b", "a?[b]\\^"]);
    assert_eq!(of("a", Some("a"), 1).await, ["a b"]);
    assert_eq!(of("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", None, 10).await, [long.as_str(), other.as_str()]);
    assert_eq!(of("ü", None, 10).await, [umlauts.as_str()]);
    assert_eq!(of("*", None, 10).await, ["*"]);
    assert!(of("nothing", None, 10).await.is_empty() && of("a\n", None, 10).await.is_empty());
}

/// Another client continues the claim, and its note replaces the old one.
#[tokio::test]
async fn claim_beside_another_that_is_granted_again_has_the_new_note() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let share = Share::permits(1, 2).unwrap();
    let [beside, claim] = [(); 2].map(|()| claim_of("job", share, Duration::from_secs(600)));
    try_take(&backend, &beside).await.unwrap();
    let fence = try_take(&backend, &claim).await.unwrap();
    let seen = async || {
        let seen = backend.inspect(&claim.resource, None, &no_patience()).await.unwrap();
        let own = seen.holders.iter().find(|holder| holder.id == claim.id).unwrap();
        (own.fence, own.since_unix_ms, own.note.as_str().to_owned())
    };
    let (_, since, _) = seen().await;
    for note in ["first", "first", "second", ""] {
        let again = claim.clone().note(Note::new(note).unwrap());
        assert_eq!(try_take(&backend, &again).await, Some(fence));
        assert_eq!(seen().await, (Some(fence), since, note.to_owned()));
    }
}

#[tokio::test]
async fn inspect_shows_holders_queue_and_notes() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let (a, b, c) = (mutex("job"), mutex("job"), mutex("job"));
    let empty = backend.inspect(&a.resource, None, &no_patience()).await.unwrap();
    assert!(empty.holders.is_empty() && empty.waiting.is_empty() && empty.fence.is_none());
    let fence = try_take(&backend, &a).await.unwrap();
    for waiter in [&b, &c] {
        backend.contend(waiter, &endless()).await.unwrap();
    }
    let seen = backend.inspect(&a.resource, Some(&empty.version), &endless()).await.unwrap();
    assert_ne!(seen.version, empty.version);
    assert_eq!(seen.fence, Some(fence));
    let [holder] = &seen.holders[..] else { panic!("{seen:?}") };
    assert_eq!((holder.id, holder.fence, holder.note.as_str()), (a.id, Some(fence), "a test"));
    assert!(holder.remaining.unwrap() <= TTL && holder.remaining.unwrap() > TTL / 2);
    assert!(holder.since_unix_ms.unwrap() > 1_600_000_000_000);
    assert_eq!(seen.waiting.iter().map(|info| info.id).collect::<Vec<_>>(), [b.id, c.id]);
    let summary = backend.list("job", None, 1).await.unwrap().pop().unwrap();
    assert_eq!((summary.holders, summary.waiting), (1, 2));
    assert!(renewed(&backend, &a).await);
    let again = backend.inspect(&a.resource, None, &no_patience()).await.unwrap();
    assert_eq!(again.version, seen.version, "a renewal is not a change");
}

#[tokio::test]
async fn observer_is_notified_of_a_change() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    for options in ["", "?wait=poll"] {
        let backend = connect(&format!("{}{options}", server.url())).await;
        let a = mutex("watched");
        try_take(&backend, &a).await.unwrap();
        let seen = backend.inspect(&a.resource, None, &no_patience()).await.unwrap();
        let bounded = patience(Duration::from_millis(150));
        let same = backend.inspect(&a.resource, Some(&seen.version), &bounded).await.unwrap();
        assert_eq!(same.version, seen.version);
        let forever = endless();
        let watching = backend.inspect(&a.resource, Some(&seen.version), &forever);
        let releasing = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(freed(&backend, &a).await);
        };
        let (changed, ()) = tokio::join!(watching, releasing);
        assert!(changed.unwrap().holders.is_empty());
    }
}

#[tokio::test]
async fn the_profile_says_what_the_options_and_the_server_say() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let profile = backend.profile();
    assert_eq!(
        (profile.name, profile.order, profile.waiting),
        ("redis", QueueOrder::Fifo, WaitMode::Notifies)
    );
    assert_eq!((profile.fencing, profile.durability), (FenceGrade::BestEffort, Durability::LostOnFailover));
    assert_eq!(backend.server_info().run_id.as_deref().map(str::len), Some(40));
    assert!(backend.server_info().version.is_some());
    let backend = connect(&format!("{}?order=unordered&wait=poll", server.url())).await;
    let profile = backend.profile();
    assert_eq!((profile.order, profile.waiting), (QueueOrder::Unordered, WaitMode::Polls));
    assert_eq!(profile.place_ttl, Duration::ZERO);
}

#[tokio::test]
async fn prefixes_and_databases_are_apart() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let root = server.url();
    let root = root.trim_end_matches('/').trim_end_matches("/0");
    for url in [root.to_owned(), format!("{root}?prefix=other"), format!("{root}/3")] {
        let backend = connect(&url).await;
        assert!(try_take(&backend, &mutex("job")).await.is_some(), "{url}");
        assert!(try_take(&backend, &mutex("job")).await.is_none(), "{url}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_shows_no_claim_of_its_own() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = Arc::new(connect(&server.url()).await);
    let (holder, waiter) = (mutex("job"), mutex("job"));
    try_take(&backend, &holder).await.unwrap();
    let waiting = tokio::spawn({
        let (backend, waiter) = (backend.clone(), waiter.clone());
        async move { take(&backend, &waiter, &endless()).await }
    });
    while !format!("{backend:?}").contains("watched: 1") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for shown in [format!("{backend:?}"), format!("{backend:#?}")] {
        for claim in [&holder, &waiter] {
            let id: String = claim.id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(!shown.contains(&id), "the id is enough to end the claim: {shown}");
        }
    }
    assert!(freed(&backend, &holder).await);
    assert!(waiting.await.unwrap().is_some());
}
