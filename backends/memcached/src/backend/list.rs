//! The list of the resources on a server. The client requests all keys, since a server cannot list some.
//!
//! For inspection by people, never for locking: the cost grows with the number of items. The request runs
//! on a connection of its own, and keeps only the keys that begin as ours do. The server walks its hash
//! table for it: the other way, along the lists by which it evicts, misses items that move meanwhile.

use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold_core::{Failure, Resource};
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::net::servers::{Node, Servers};
use crate::protocol::reply::Reply;

/// Resources in the order of their names.
pub(crate) struct Found {
    pub(crate) resources: Vec<Resource>,
}

impl Found {
    /// Returns the keys of all servers whose names begin with `prefix` and come behind `after`. `name_in`
    /// reads the name out of the value of an item whose key has only its hash.
    pub(crate) async fn in_all(
        servers: &Servers,
        prefix: &str,
        after: Option<&Resource>,
        name_in: impl Fn(&[u8]) -> Option<Resource>,
    ) -> Result<Found, Failure> {
        let dumped = try_join_all(servers.nodes.iter().map(|node| keys(servers, node, prefix))).await?;
        let mut resources = Vec::new();
        for (node, keys) in servers.nodes.iter().zip(dumped) {
            let (hashed, plain): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| servers.is_hashed(key));
            resources.extend(plain.iter().filter_map(|key| servers.resource(key)));
            resources.extend(names(servers, node, &hashed, &name_in).await?);
        }
        resources.retain(|resource| {
            resource.as_str().starts_with(prefix) && after.is_none_or(|after| resource > after)
        });
        resources.sort_unstable();
        resources.dedup();
        Ok(Found { resources })
    }
}

/// Returns the escaped names in the keys of one server that are ours, without those that do not begin with `prefix`.
async fn keys(servers: &Servers, node: &Node, prefix: &str) -> Result<Vec<String>, Failure> {
    match tokio::time::timeout(DUMP_LIMIT, dump(servers, node, prefix)).await {
        Ok(outcome) => outcome,
        Err(elapsed) => {
            let text = format!("{} did not list all its keys within {DUMP_LIMIT:?}", node.dialer.address());
            Err(Failure::unavailable(text).because(elapsed))
        }
    }
}

async fn dump(servers: &Servers, node: &Node, prefix: &str) -> Result<Vec<String>, Failure> {
    let address = node.dialer.address();
    let broken = |error: std::io::Error| {
        Failure::unavailable(format!("{address} broke off its list of keys ({error})")).because(error)
    };
    for _ in 0..MAX_BUSY {
        let mut stream = BufReader::new(node.dialer.stream().await?);
        stream.write_all(b"lru_crawler metadump hash\r\n").await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        let mut found = Vec::new();
        let mut line = Vec::new();
        loop {
            line.clear();
            (&mut stream).take(MAX_QUEUE).read_until(b'\n', &mut line).await.map_err(broken)?;
            if line.last() != Some(&b'\n') {
                return Err(broken(std::io::ErrorKind::UnexpectedEof.into()));
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            match text.strip_prefix("key=") {
                Some(rest) => {
                    let key = rest.split(' ').next().unwrap_or_default();
                    let key = percent_decode_str(key).decode_utf8_lossy();
                    // The item of a hash has the name.
                    let is_wanted = |name: &&str| {
                        servers.is_hashed(name)
                            || servers.resource(name).is_some_and(|found| found.as_str().starts_with(prefix))
                    };
                    found.extend(servers.named_by(&key).filter(is_wanted).map(str::to_owned));
                    if found.len() > MAX_KEYS {
                        let text =
                            format!("{address} has more than {MAX_KEYS} resources: list by another way");
                        return Err(Failure::unavailable(text));
                    }
                }
                None if text == "END" => return Ok(found),
                // Newer servers announce the list.
                None if text == "OK" => {}
                // Only one list can be made at a time.
                None if text.starts_with("BUSY") => break,
                None => return Err(node.unexpected(&Reply::Refused(text.to_owned()))),
            }
        }
        tokio::time::sleep(BUSY_PAUSE).await;
    }
    Err(Failure::unavailable(format!("{address} is busy with other lists of its keys: try again later")))
}

/// Returns the names of resources whose keys have only their hashes.
async fn names(
    servers: &Servers,
    node: &Node,
    hashed: &[String],
    name_in: &impl Fn(&[u8]) -> Option<Resource>,
) -> Result<Vec<Resource>, Failure> {
    if hashed.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<_> = hashed.iter().filter_map(|name| servers.key_of_escaped(name)).collect();
    let commands: Vec<_> = keys.iter().map(|key| crate::protocol::command::Command::Look { key }).collect();
    let link = node.link().await?;
    let mut names = Vec::new();
    for reply in node.ask_all(&link, &commands).await {
        if let Reply::Item { value, .. } = reply? {
            names.extend(name_in(&value));
        }
    }
    Ok(names)
}

/// The time that one server may take to list all its keys.
const DUMP_LIMIT: Duration = Duration::from_secs(60);
/// The longest line of the list, in bytes: every byte of a key may take three.
const MAX_QUEUE: u64 = 2048;
/// The most resources of one server that are kept for one listing.
const MAX_KEYS: usize = 1_000_000;
const MAX_BUSY: usize = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
