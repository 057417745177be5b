//! `sweep`: removes the remains of unused locks.

use std::io::Write;
use std::pin::pin;

use leasehold::SweepReport;
use tokio::sync::watch;

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
    let (sender, progress) = watch::channel(SweepReport::default());
    let mut sweep = pin!(store.sweep(args.unused_for, |swept| {
        let _before = sender.send_replace(swept);
    }));
    let swept = loop {
        tokio::select! {
            biased;
            swept = &mut sweep => break swept,
            () = counter.pause() => counter.show(|| line(&store, *progress.borrow())),
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

/// Returns the line that a person sees meanwhile. How many names there are is not known before the end.
fn line(store: &StoreUrl, swept: SweepReport) -> String {
    let done = swept.removed + swept.emptied;
    format!("sweeping {}: {} names seen, {done} swept", store.shown(), swept.seen)
}
