//! Fuzz targets: names and data of nodes that any client may write, what servers say of themselves, and URLs.

use leasehold_core::{Note, Share};
use leasehold_fuzz::{Target, kind_of_url};

use crate::ZooKeeperConfig;
use crate::net::four_letter;
use crate::protocol::dialect::{Dialect, looks_like_a_claim};
use crate::protocol::layout::{read_capacity, read_note, read_permit};
use crate::protocol::queue::NodeQueue;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const ID: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn queue() {
    let seeds = [
        format!("{ID}-1-1-0000000007\n{ID}-2-3-0000000008"),
        format!("{ID}-1-1--2147483648\n{ID}-1-1-2147483647"),
        "_c_01234567-89ab-cdef-0123-456789abcdef-lock-0000000001\n\
         _c_01234567-89ab-cdef-0123-456789abcdff-__READ__0000000002\n\
         _c_01234567-89ab-cdef-0123-456789abcdff-__WRIT__0000000002"
            .to_owned(),
        format!("{ID}__lock__0000000003\n{ID}__rlock__0000000004"),
    ];
    let words = ["-lock-", "__lock__", "__READ__", "__WRIT__", "_c_", "-lease-", ID, "-1-1-", "2147483647"];
    Target::new("queue", HERE).seeds(seeds).words(&words).run(|input| {
        let text = String::from_utf8_lossy(input);
        let names: Vec<String> = text.lines().take(50).map(str::to_owned).collect();
        let mut kinds = String::new();
        for dialect in [Dialect::Native, Dialect::Curator, Dialect::Kazoo] {
            for name in &names {
                if dialect.read(name).is_some() || dialect.read_lease(name).is_some() {
                    assert!(looks_like_a_claim(name), "a claim of a dialect looks like one: {name:?}");
                }
            }
            let Ok(queue) = NodeQueue::of(dialect, names.clone()) else {
                kinds.push('-');
                continue;
            };
            let entries = queue.entries();
            assert!(entries.iter().all(|entry| names.contains(&entry.name)));
            assert!(entries.is_empty() || queue.admits(0) || !entries[0].share.is_exclusive());
            // Two exclusive claims never hold together.
            let both =
                (0..entries.len()).filter(|at| queue.admits(*at) && entries[*at].share == Share::MUTEX);
            assert!(both.count() <= 1, "two mutexes are admitted: {names:?}");
            for at in 0..entries.len() {
                drop(queue.blockers(at));
            }
            kinds.push(if entries.is_empty() { '0' } else { '+' });
        }
        kinds
    });
}

#[test]
fn data() {
    Target::new("data", HERE).seeds(["1/3\nnote", "note", "7", " 12\n"]).words(&["1/", "\n"]).run(|input| {
        let (share, note) = read_permit(input);
        let whole = read_note(input);
        assert!(note.as_str().len() <= Note::MAX_BYTES && whole.as_str().len() <= Note::MAX_BYTES);
        format!("{} {}", share.is_some(), read_capacity(input).is_some())
    });
}

#[test]
fn report() {
    let seeds = [
        "Zookeeper version: 3.8.0-abc, built on x\nLatency min/avg/max: 0/0.5/21\nMode: follower\n",
        "This ZooKeeper instance is not currently serving requests\n",
        "tickTime=2000\nmaxClientCnxns=60\n",
    ];
    Target::new("report", HERE).seeds(seeds).words(&["Mode:", "tickTime=", "Latency min/avg/max:", "/"]).run(
        |input| {
            let text = String::from_utf8_lossy(input);
            let tick = four_letter::read_tick(&text).is_some();
            format!("{:?} {tick}", std::mem::discriminant(&four_letter::read(&text)))
        },
    );
}

#[test]
fn url() {
    let seeds = ["zookeeper://a,b:2,[::1]:3/locks/x?timeout=3s", "zookeeper+tls://a?ca=/a&cert=/b&key=/c"];
    Target::new("url", HERE).seeds(seeds).words(&["&dialect=curator", "mutex=", "@", "%2f", "//"]).run(
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
            kind_of_url(text, ZooKeeperConfig::parse(text), |error| format!("{:?}", error.kind))
        },
    );
}
