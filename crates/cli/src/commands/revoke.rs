//! `revoke`: asks the holders of a lock to release it, and waits for that on request.

use std::io::{self, Write};
use std::time::Duration;

use leasehold::backend::Clock;
use leasehold::{ClaimInfo, Client, ErrorKind, Note, Resource, SystemClock};
use leasehold_monitor::RevokedShape;

use crate::exit::{Exit, Problem, even_unread};
use crate::output::describe::note_or_tag;
use crate::output::json;
use crate::output::stderr::complain;
use crate::output::text::{duration, visible_name};
use crate::request::args::RevokeArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold revoke`.
///
/// # Errors
/// The store failed; usage, for a reason that is too long; busy, if a holder did not release the lock within
/// `--wait`; stdout cannot be written.
pub(crate) async fn revoke(args: RevokeArgs) -> Result<Exit, Problem> {
    let locks = StoreUrl::named(args.store.url.as_deref())?.read_only().open(Note::default()).await?;
    let asked = locks.revoke(args.name.as_str(), &args.reason).await?;
    let name = visible_name(args.name.as_str());
    if !args.json {
        even_unread(print(&name, "asked", &asked))?;
        let waits = match (asked.is_empty(), args.wait) {
            (true, _) => format!("{name} is free: nobody to ask"),
            (false, None) => {
                "a holder that does not listen for requests (run --on-revoke) continues, and is not reported"
                    .to_owned()
            }
            (false, Some(limit)) => format!("waiting up to {} for the release", duration(limit)),
        };
        complain(&waits);
    }
    let still_held = match args.wait {
        Some(limit) => Some(still_held(&locks, &args.name, &asked, limit).await?),
        None => None,
    };
    if args.json {
        let shape = RevokedShape::of(&args.name, &asked).still_held(still_held.as_deref());
        even_unread(json::line(&mut io::stdout().lock(), &shape))?;
    }
    match (still_held.as_deref(), args.wait) {
        _ if asked.is_empty() => Ok(Exit::NothingBroken),
        (Some([first, ..]), Some(limit)) => {
            let (limit, first) = (duration(limit), note_or_tag(first));
            Err(Problem::new(Exit::Busy, format!("{name} was not released within {limit}: held by {first}")))
        }
        _ => Ok(Exit::Done),
    }
}

/// Prints a line for each claim.
///
/// # Errors
/// Of the stream.
pub(crate) fn print(name: &str, what: &str, claims: &[ClaimInfo]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    claims.iter().try_for_each(|info| writeln!(out, "{name}: {what}: {}", note_or_tag(info)))
}

/// Waits until none of these claims holds the lock, and returns those that still do at the end of the limit. A
/// store that is away for a while does not end the wait.
///
/// # Errors
/// The store failed at the end of the limit, or for good.
pub(crate) async fn still_held(
    locks: &Client,
    name: &Resource,
    claims: &[ClaimInfo],
    limit: Duration,
) -> Result<Vec<ClaimInfo>, Problem> {
    let clock = SystemClock;
    let end = clock.now().after(limit);
    let mut seen = None;
    loop {
        let left = clock.now().until(end);
        let looked = match &seen {
            None => locks.inspect(name).await,
            Some(version) => locks.changed(name, version, left.min(LOOK)).await,
        };
        match looked {
            Ok(snapshot) => {
                let holds = |claim: &&ClaimInfo| snapshot.holders.iter().any(|holder| holder.id == claim.id);
                let held: Vec<_> = claims.iter().filter(holds).cloned().collect();
                if held.is_empty() || clock.now() >= end {
                    return Ok(held);
                }
                seen = Some(snapshot.version);
            }
            Err(error) => {
                let passes = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown);
                if !passes || clock.now() >= end {
                    return Err(error.into());
                }
                tokio::time::sleep(RETRY.min(left)).await;
            }
        }
    }
}

/// The time for which one request waits for a change.
const LOOK: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(500);
