//! Lists the resources that are locked on one member.

use std::collections::BTreeSet;

use leasehold_core::{ClaimId, Failure, Resource};

use super::{LOCK, answers, scripts};
use crate::backend::inspect::{each_key, glob_escaped, searched};
use crate::config::RedisConfig;
use crate::net::command_conn::CommandConn;
use crate::net::request::Request;
use crate::protocol::keys::MAX_NAME;

/// Lists the locked resources whose names begin with `prefix`, and the holders of their locks.
pub(super) async fn list(
    conn: &CommandConn,
    config: &RedisConfig,
    prefix: &str,
) -> Result<Vec<(Resource, ClaimId)>, Failure> {
    let keys: Vec<String> = keys(conn, config, prefix).await?.into_iter().collect();
    let root = format!("{{{}:", config.prefix);
    let mut found = Vec::new();
    for chunk in keys.chunks(BATCH_MAX) {
        let request =
            Request { script: &scripts::HOLDERS, keys: chunk.to_vec(), args: Vec::new(), confirm: None };
        let texts = answers::texts(conn.run(&request, config.timeout).await?)?;
        for (key, fields) in chunk.iter().zip(texts.chunks_exact(2)) {
            let stored = stored_name(key, &root).unwrap_or_default();
            let named = || Resource::new(&fields[1]).ok();
            let resource = if Resource::is_hashed(stored) { named() } else { Resource::from_escaped(stored) };
            // A lock that ended meanwhile, or cannot be read, is left out.
            let (Some(resource), Some(id)) = (resource, ClaimId::from_hex(&fields[0])) else { continue };
            if resource.as_str().starts_with(prefix) {
                found.push((resource, id));
            }
        }
    }
    Ok(found)
}

/// Returns the keys of all locks whose names may begin with `prefix`.
async fn keys(conn: &CommandConn, config: &RedisConfig, prefix: &str) -> Result<BTreeSet<String>, Failure> {
    let root = format!("{{{}:", config.prefix);
    let pattern = format!("{}{}*}}:{LOCK}", glob_escaped(&root), glob_escaped(&searched(prefix)));
    let mut keys = BTreeSet::new();
    each_key(conn, config.timeout, &pattern, None, |key| {
        keys.extend(String::from_utf8(key.to_vec()).ok());
        keys.len()
    })
    .await?;
    Ok(keys)
}

fn stored_name<'a>(key: &'a str, root: &str) -> Option<&'a str> {
    let (stored, part) = key.strip_prefix(root)?.split_once("}:")?;
    (part == LOCK && stored.len() <= MAX_NAME).then_some(stored)
}

/// Locks that are looked at by one script.
const BATCH_MAX: usize = 500;
