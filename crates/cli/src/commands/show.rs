//! `show`: shows which claims hold a lock and which wait for it.

use std::io::{self, Write};

use leasehold::{ClaimInfo, Note, Snapshot};
use leasehold_monitor::LockShape;

use crate::exit::{Exit, Problem};
use crate::output::describe::{held_by, note_or_tag, since, waiting};
use crate::output::json;
use crate::output::paint::Paint;
use crate::output::table::Table;
use crate::output::text::{duration, visible_name};
use crate::request::args::ShowArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold show`.
///
/// # Errors
/// The store failed; stdout cannot be written.
pub(crate) async fn show(args: ShowArgs) -> Result<Exit, Problem> {
    let ShowArgs { look: args, quiet } = args;
    let locks = StoreUrl::named(args.store.url.as_deref())?.read_only().open(Note::default()).await?;
    let snapshot = locks.inspect(args.name.as_str()).await?;
    if quiet {
        return Ok(if snapshot.holders.is_empty() { Exit::Free } else { Exit::Done });
    }
    let mut out = io::stdout().lock();
    match args.json {
        true => json::line(&mut out, &LockShape::of(&snapshot))?,
        false => print(&mut out, &snapshot, Paint::of_stdout())?,
    }
    Ok(Exit::Done)
}

/// Writes it for people.
///
/// # Errors
/// Of the stream.
pub(crate) fn print(out: &mut impl Write, snapshot: &Snapshot, paint: Paint) -> io::Result<()> {
    let name = paint.bold(&visible_name(snapshot.resource.as_str()));
    let state = match snapshot.holders.len() {
        0 => paint.green("free"),
        1 => paint.yellow("held"),
        count => paint.yellow(&format!("held by {count}")),
    };
    let line = waiting(snapshot).map(|waiting| format!(", {waiting}")).unwrap_or_default();
    let fence = match (snapshot.holders.is_empty(), snapshot.fence) {
        (true, Some(fence)) => format!(", last fence {fence}"),
        _ => String::new(),
    };
    writeln!(out, "{name}: {state}{line}{fence}")?;
    let mut table = Table::default();
    for holder in &snapshot.holders {
        table.row(cells("  holder".to_owned(), holder));
    }
    for (index, waiter) in snapshot.waiting.iter().enumerate() {
        table.row(cells(format!("  waiter {}", index + 1), waiter));
    }
    table.write(out)
}

/// Returns one line for a change: the state of the lock, without the table.
pub(crate) fn summary(snapshot: &Snapshot) -> String {
    let state = held_by(snapshot);
    let fence =
        snapshot.holders.first().and_then(|holder| holder.fence).map(|fence| format!(", fence {fence}"));
    let waiting = waiting(snapshot).map(|waiting| format!(", {waiting}"));
    format!("{state}{}{}", fence.unwrap_or_default(), waiting.unwrap_or_default())
}

fn cells(role: String, info: &ClaimInfo) -> [String; 6] {
    [
        role,
        info.share.to_string(),
        info.fence.map(|fence| format!("fence {fence}")).unwrap_or_default(),
        since(info).map(|since| format!("since {since}")).unwrap_or_default(),
        info.remaining.map(|left| format!("{} left", duration(left))).unwrap_or_default(),
        note_or_tag(info),
    ]
}
