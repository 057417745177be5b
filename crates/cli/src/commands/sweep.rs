//! `sweep`: removes the remains of unused locks.

use std::io::Write;
use std::pin::pin;

use crate::exit::{Exit, Problem};
use crate::output::counter::{Counter, Output};
use crate::output::json;
use crate::request::args::SweepArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold sweep`.
///
/// # Errors
/// The store failed, or has no rows; stdout cannot be written.
pub(crate) async fn sweep(args: SweepArgs) -> Result<Exit, Problem> {
    let store = StoreUrl::named(args.store.url.as_deref())?;
    let mut counter = Counter::start(Output::AtTheEnd);
    let mut sweep = pin!(store.sweep(args.unused_for));
    let swept = loop {
        tokio::select! {
            biased;
            swept = &mut sweep => break swept,
            () = counter.pause() => counter.show(|| format!("sweeping {}", store.shown())),
        }
    };
    counter.end().await;
    let swept = swept?;
    let mut out = std::io::stdout().lock();
    match args.json {
        true => json::line(&mut out, &swept)?,
        false => writeln!(
            out,
            "{} names seen, {} removed, {} kept for their fences and emptied",
            swept.seen, swept.removed, swept.emptied
        )?,
    }
    Ok(Exit::Done)
}
