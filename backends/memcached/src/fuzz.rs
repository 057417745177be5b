//! Fuzz targets: what servers and other clients write, and URLs.

use leasehold_core::{ClaimId, Fence, Note, Resource};
use leasehold_fuzz::{Target, kind_of_url};

use crate::MemcachedConfig;
use crate::compat::token::{PlainHolder, Token};
use crate::protocol::command::MAX_VALUE;
use crate::protocol::facts::Facts;
use crate::protocol::reply::{Reply, is_overlong, read};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

const REPLIES: [&str; 9] = [
    "VA 5 c12 t30 O7\r\nvalue\r\n",
    "VA 0 c1 t-1 O4294967295 W\r\n\r\n",
    "HD O7\r\n",
    "NS O7\r\n",
    "EN\r\n",
    "STORED\r\n",
    "STAT pid 7\r\nSTAT version 1.6.18\r\nEND\r\n",
    "SERVER_ERROR out of memory storing object\r\n",
    "EX O1\r\nHD O2\r\n",
];

#[test]
fn reply() {
    Target::new("reply", HERE).seeds(REPLIES).words(&["\r\n", " c", " t", " O", "VA ", "STAT ", "END"]).run(
        |input| {
            let Ok(found) = read(input) else { return "refused".to_owned() };
            let Some((reply, used)) = found else {
                assert!(!is_overlong(input.len()), "more is waited for than can be kept");
                return "more".to_owned();
            };
            if used > input.len() {
                assert!(
                    matches!(reply, Reply::Item { .. }) && used > MAX_VALUE,
                    "more is taken than there is"
                );
                return "long item".to_owned();
            }
            // What follows an answer changes nothing, and a part of it is never another answer.
            assert_eq!(read(&input[..used]), Ok(Some((reply.clone(), used))));
            for part in [0, used / 2, used.saturating_sub(2), used - 1] {
                assert_eq!(read(&input[..part]), Ok(None), "a part of {part} bytes");
            }
            match reply {
                Reply::Item { value, number, left, mark } => {
                    let part = |name: &str, text: Option<String>| {
                        text.map_or_else(String::new, |it| format!(" {name}{it}"))
                    };
                    let left_text = left.map_or("-1".to_owned(), |left| left.to_string());
                    let head = format!(
                        "VA {} c{number} t{left_text}{}\r\n",
                        value.len(),
                        part("O", mark.map(|mark| mark.to_string()))
                    );
                    let written = [head.as_bytes(), &value, b"\r\n"].concat();
                    let again = Reply::Item { value, number, left, mark };
                    assert_eq!(read(&written), Ok(Some((again, written.len()))));
                    "item".to_owned()
                }
                Reply::Stats(facts) => {
                    let known = Facts::read(facts.clone(), facts).is_ok();
                    format!("stats {known}")
                }
                other => format!("{:?}", std::mem::discriminant(&other)),
            }
        },
    );
}

#[test]
fn token() {
    let holder = PlainHolder {
        id: ClaimId::from_bytes([7; 16]),
        fence: Some(Fence::new(1, 2, 0)),
        resource: Resource::new("a b/é").unwrap(),
        note: Note::new("host 7\n").unwrap(),
    };
    let unnamed = PlainHolder { fence: None, ..holder.clone() };
    Target::new("token", HERE).seeds([holder.to_value(), unnamed.to_value(), b"tooz-7".to_vec()]).run(
        |input| match Token::read(input) {
            Token::Ours(holder) => {
                assert_eq!(Token::read(&holder.to_value()), Token::Ours(holder));
                "ours"
            }
            Token::Foreign(id) => {
                assert_eq!(Token::read(input).id(), id, "one value has one id");
                "foreign"
            }
        },
    );
}

#[test]
fn url() {
    let seeds =
        ["memcached://10.0.0.1,10.0.0.2:11212?prefix=a&timeout=3s", "memcacheds://u:s3cretword@[::1]/?ca=/a"];
    let words = ["&order=", "?dialect=plain", "@", "%2", "memcached:", "password-file="];
    Target::new("url", HERE).seeds(seeds).words(&words).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
        kind_of_url(text, MemcachedConfig::parse(text), |error| format!("{:?}", error.kind))
    });
}
