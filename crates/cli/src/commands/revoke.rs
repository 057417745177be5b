//! `revoke`: asks the holders of a lock to release it.

use std::io::{self, Write};

use leasehold::Note;
use leasehold_monitor::RevokedShape;

use crate::exit::{Exit, Problem};
use crate::output::describe::note_or_tag;
use crate::output::json;
use crate::output::stderr::complain;
use crate::output::text::visible;
use crate::request::args::RevokeArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold revoke`.
///
/// # Errors
/// The store failed; usage, for a reason that is too long; stdout cannot be written.
pub(crate) async fn revoke(args: RevokeArgs) -> Result<Exit, Problem> {
    let locks = StoreUrl::named(args.store.url.as_deref())?.read_only().open(Note::default()).await?;
    let asked = locks.revoke(args.name.as_str(), &args.reason).await?;
    let name = visible(args.name.as_str());
    let mut out = io::stdout().lock();
    if args.json {
        json::line(&mut out, &RevokedShape::of(&args.name, &asked))?;
    } else {
        for info in &asked {
            writeln!(out, "{name}: asked: {}", note_or_tag(info))?;
        }
    }
    if asked.is_empty() {
        if !args.json {
            complain(&format!("{name} is free: nobody to ask"));
        }
        return Ok(Exit::NothingBroken);
    }
    if !args.json {
        complain(
            "a holder that does not listen for requests (run --on-revoke) continues, and is not reported",
        );
    }
    Ok(Exit::Done)
}
