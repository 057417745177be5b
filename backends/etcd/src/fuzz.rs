//! Fuzz targets: answers of servers, keys and values that any client may write, and URLs.

use leasehold_core::{ClaimId, Note, Resource};
use leasehold_fuzz::{Target, kind_of_url};
use prost::Message;

use crate::EtcdConfig;
use crate::protocol::layout::{Dialect, Layout};
use crate::protocol::proto::{KeyValue, RangeResponse, TxnResponse, WatchResponse};
use crate::protocol::queue::{admits, holders};
use crate::protocol::txn::into_range;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const ID: &str = "0123456789abcdef0123456789abcdef";

fn kv(key: &str, value: &str) -> KeyValue {
    let value = value.as_bytes().to_vec();
    KeyValue { key: key.into(), value, create_revision: 7, mod_revision: 9, version: 1, lease: 0x1f }
}

/// Reads keys as claims in each dialect.
fn understand(kvs: &[KeyValue]) -> String {
    let resource = Resource::new("job").unwrap();
    let mut kinds = String::new();
    for dialect in [Dialect::Native, Dialect::Concurrency, Dialect::Etcd3] {
        let layout = Layout::new("lh/", dialect);
        for kv in kvs {
            if let Some((_, entry)) = layout.read_entry(kv) {
                assert_eq!((entry.place, entry.lease), (kv.create_revision, kv.lease));
                let (_, note) = layout.read_value(entry.id, &kv.value);
                assert!(note.as_str().len() <= Note::MAX_BYTES);
                kinds.push('e');
            }
        }
        match layout.read_queue(&resource, kvs) {
            Err(_) => kinds.push('-'),
            Ok(queue) => {
                assert!(queue.is_sorted_by_key(|entry| entry.place));
                assert!(holders(&queue) <= queue.len());
                if let Some((last, ahead)) = queue.split_last() {
                    kinds.push(if admits(ahead, last.share) { 'a' } else { 'w' });
                }
            }
        }
    }
    kinds.truncate(12);
    kinds
}

#[test]
fn keys() {
    let seeds = [
        format!("lh/job!{ID}.1.1\n{ID} 10000 a note"),
        format!("lh/job/{ID}\n10000 a note"),
        "lh/job/1f\n".to_owned(),
        format!("lh/job\n{ID} 10000 x"),
        format!("lh/a%21b!{ID}.2.5\n10000 \n lh/job!{ID}.1.4294967295\n1 "),
    ];
    Target::new("keys", HERE).seeds(seeds).words(&["lh/", "job!", "/", ".1.1", ID, "%21", " 10000 "]).run(
        |input| {
            let lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').take(40).collect();
            let pair = |pair: &[&[u8]]| {
                let mut kv = kv("", "");
                kv.key = pair[0].to_vec();
                kv.value = pair.get(1).copied().unwrap_or_default().to_vec();
                kv
            };
            let kvs: Vec<KeyValue> = lines.chunks(2).map(pair).collect();
            understand(&kvs)
        },
    );
}

#[test]
fn answer() {
    let kvs = vec![kv(&format!("lh/job!{ID}.1.1"), "10000 note"), kv("lh/job/1f", "")];
    let range = RangeResponse { kvs, count: 2, ..RangeResponse::default() };
    let id = ClaimId::from_bytes([1; 16]);
    Target::new("answer", HERE).seeds([range.encode_to_vec(), TxnResponse::default().encode_to_vec()]).run(
        |input| {
            let mut kinds = String::new();
            if let Ok(range) = RangeResponse::decode(input) {
                kinds += &understand(&range.kvs);
            }
            if let Ok(txn) = TxnResponse::decode(input) {
                kinds.push('t');
                for range in txn.responses.into_iter().filter_map(into_range) {
                    kinds += &understand(&range.kvs);
                }
            }
            if WatchResponse::decode(input).is_ok() {
                kinds.push('w');
            }
            drop(Layout::new("lh/", Dialect::Native).read_value(id, input));
            kinds.truncate(12);
            kinds
        },
    );
}

#[test]
fn url() {
    let seeds = ["etcd://u:s3cretword@a,b:2,[::1]:3?prefix=x/&timeout=3s", "etcds://a?ca=/a&cert=/b&key=/c"];
    Target::new("url", HERE).seeds(seeds).words(&["&dialect=etcd3", "waiter-ttl=", "@", "%2f", ","]).run(
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
            kind_of_url(text, EtcdConfig::parse(text), |error| format!("{:?}", error.kind))
        },
    );
}
