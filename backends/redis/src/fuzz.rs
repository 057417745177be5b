//! Fuzz targets: what servers answer, what other clients write, and URLs.

use futures_util::FutureExt;
use leasehold_core::Resource;
use leasehold_fuzz::{Target, kind_of_url};
use redis::Value;

use crate::RedisConfig;
use crate::RedlockConfig;
use crate::compat::reading;
use crate::net::pubsub_conn;
use crate::net::replies::read;
use crate::net::subscriber::{self, Notification};
use crate::protocol::error;
use crate::protocol::reply;
use crate::protocol::slots::{View, slot_of};
use crate::topology::sentinel::named_by;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

const REPLIES: [&str; 10] = [
    "+OK\r\n",
    ":-17\r\n",
    "$4\r\na\r\nb\r\n",
    "$-1\r\n",
    "-MOVED 866 127.0.0.1:7001\r\n",
    "-STALE_EPOCH 3\r\n",
    "$2\r\n17\r\n",
    "*5\r\n:0\r\n:2\r\n:900\r\n:0\r\n:1\r\n",
    "*4\r\n:1\r\n:18\r\n:2\r\n:1\r\n",
    "*6\r\n$13\r\n1700000000000\r\n$1\r\n0\r\n$1\r\n7\r\n$3\r\n7/1\r\n\
     *3\r\n$36\r\n0123456789abcdef0123456789abcdef:1:1\r\n$13\r\n1700000009000\r\n$18\r\n7:1700000:::a note\r\n*0\r\n",
];

/// Reads an answer as every script's, none of which may misread another's.
fn understand(value: &Value) -> String {
    let resource = Resource::new("r").unwrap();
    let kinds = [
        reply::contend_reply(value.clone()).is_ok(),
        reply::snapshot(&resource, value.clone()).is_ok(),
        reply::existed(value.clone()).is_ok(),
        reply::numbers(value.clone(), 2).is_ok(),
        reading::contend_reply(value.clone()).is_ok(),
        reading::snapshot(&resource, value.clone()).is_ok(),
        reply::is_grant(value),
        reply::was_held(value),
    ];
    if reply::contend_reply(value.clone()).is_ok_and(|it| matches!(it, reply::ContendReply::Granted(_))) {
        assert!(reply::is_grant(value), "a grant is seen as one");
    }
    if let Value::ServerError(refusal) = value {
        let error = redis::RedisError::from(refusal.clone());
        let _ = (error::redirect_of(&error), error::of_request(&error, "127.0.0.1:1"));
    }
    format!("{kinds:?}")
}

#[test]
fn reply() {
    let words = ["\r\n", "$", "*", ":", "-ERR ", "-ASK 1 ", "*-1\r\n", "$-1\r\n", "*1\r\n"];
    Target::new("reply", HERE).seeds(REPLIES).words(&words).run(|input| {
        let Ok(found) = read(input) else { return "refused".to_owned() };
        let Some((value, used)) = found else { return "more".to_owned() };
        assert!(used <= input.len());
        // What follows an answer changes nothing, and a part of it is never another answer.
        assert_eq!(read(&input[..used]), Ok(Some((value.clone(), used))));
        for part in [0, used / 2, used - 1] {
            assert_eq!(read(&input[..part]), Ok(None), "a part of {part} bytes");
        }
        understand(&value)
    });
}

/// The client library reads the same value where both understand the bytes.
#[test]
fn reply_as_the_library_reads_it() {
    Target::new("library", HERE).seeds(REPLIES).words(&["\r\n", "$", "*", ":"]).run(|input| {
        let Ok(Some((value, used))) = read(input) else { return "other" };
        match redis::parse_redis_value(&input[..used]) {
            Ok(theirs) => {
                assert_eq!(value, theirs);
                "both"
            }
            Err(_) => "ours",
        }
    });
}

#[test]
fn cluster_nodes() {
    let seed = "07c37df 127.0.0.1:30004@31004,host.example slave e7d1eec 0 1426238317239 4 connected\n\
                e7d1eec 127.0.0.1:30001@31001 myself,master - 0 0 1 connected 0-5460 [5461->-292f8b3]\n\
                292f8b3 [::1]:30003@31003 master,fail? - 0 1426238318243 3 connected 5461 10923-16383\n";
    let words =
        ["myself,", "master", "slave", "fail", "noaddr", "handshake", "0-16383", "16384", "connected"];
    Target::new("nodes", HERE).seed(seed).words(&words).cases(5_000).run(|input| {
        let Ok(mut view) = View::read(&String::from_utf8_lossy(input)) else { return "refused".to_owned() };
        view.fill_own_host("10.0.0.9");
        for slot in [0, 5_460, 5_461, 16_383, 16_384, u16::MAX] {
            if let Some(owner) = view.owner(slot) {
                assert!(slot < 16_384 && view.node(&owner.id).is_some(), "an owner is one of the nodes");
            }
        }
        let owned = (0..16_384).filter(|slot| view.owner(*slot).is_some()).count();
        format!("{} {}", view.primaries().count().min(3), owned == 0)
    });
}

#[test]
fn sentinel_answer() {
    let seed = "*10\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$4\r\nport\r\n$4\r\n6379\r\n$5\r\nflags\r\n$6\r\nmaster\r\n\
                $12\r\nconfig-epoch\r\n$1\r\n3\r\n$10\r\nnum-slaves\r\n$1\r\n2\r\n";
    let words =
        ["failover_in_progress", "s_down", "$-1\r\n", "*-1\r\n", "-IDONTKNOW no\r\n", "65536", "%2\r\n"];
    Target::new("sentinel", HERE).seed(seed).words(&words).run(|input| {
        let Ok(Some((value, _))) = read(input) else { return "no value" };
        if named_by(value).is_some() { "a primary" } else { "not understood" }
    });
}

/// Reads replies and messages of a connection for subscriptions.
#[test]
fn subscription() {
    let seeds = [
        "*3\r\n$7\r\nmessage\r\n$5\r\n{a}:w\r\n$8\r\n0123abcd\r\n",
        "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
        "*3\r\n$12\r\nsunsubscribe\r\n$-1\r\n:0\r\n",
        "-MOVED 866 127.0.0.1:7001\r\n",
        "+PONG\r\n",
    ];
    let words = ["\r\n", "$", "*", ":", "*4\r\n", "$-1\r\n", "pmessage", "$1000000\r\n"];
    Target::new("subscription", HERE).seeds(seeds).words(&words).run(|input| {
        let mut rest = input;
        let Some(Ok(reply)) = pubsub_conn::read(&mut rest).now_or_never() else {
            return "refused".to_owned();
        };
        // What follows changes nothing, and a part is no reply.
        let used = &input[..input.len() - rest.len()];
        assert_eq!(pubsub_conn::read(&mut &*used).now_or_never().unwrap().unwrap(), reply);
        assert!(pubsub_conn::read(&mut &used[..used.len() - 1]).now_or_never().unwrap().is_err());
        format!("{:?}", std::mem::discriminant(&reply))
    });
}

/// Reads messages that clients publish about a lock.
#[test]
fn notification() {
    let words = ["+", "=", " ", "-", "ffffffff", "100000000"];
    let seeds = ["-", "*", "0123abcd", "+0123abcd=7530 0123abcd", "0123abcd 4567ef01", ""];
    Target::new("notification", HERE).seeds(seeds).words(&words).run(|input| {
        match subscriber::parse(input) {
            Notification::Freed => "freed",
            Notification::Changed => "changed",
            Notification::Called { lease: Some(_), .. } => "granted",
            Notification::Called { .. } => "called",
        }
    });
}

#[test]
fn slot() {
    Target::new("slot", HERE).seeds(["a{b}c", "{}", "a{b", "{a}{b}"]).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text" };
        assert!(slot_of(text) < 16_384);
        "text"
    });
}

#[test]
fn url() {
    let seeds = [
        "redis://u:s3cretword@10.0.0.1:7000/2?prefix=a&wait=poll&timeout=3s",
        "rediss://[::1]?ca=/a&cert=/b&key=/c",
        "redis+cluster://a,b:2,c?order=unordered",
        "redis+sentinel://a,b/main/3?sentinel-user=x",
        "redis+unix:///run/redis.sock?dialect=redisson&key-prefix=x",
        "redlock://a,b,c?timeout=200ms",
    ];
    let words = ["&dialect=", "plain", "dual:", "@", "%2", "redis:", "?password-file=", "+sentinel"];
    Target::new("url", HERE).seeds(seeds).words(&words).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
        let one = kind_of_url(text, RedisConfig::parse(text), |error| format!("{:?}", error.kind));
        let many = RedlockConfig::parse(text).is_ok();
        format!("{one} {many}")
    });
}
