//! `top`: a live view of all locks, in a terminal.

use leasehold::Note;
use leasehold_top::{Settings, check_terminal, run};

use crate::exit::{Exit, Problem};
use crate::output::paint::Paint;
use crate::output::stderr::{Stderr, complain};
use crate::request::args::TopArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold top`.
///
/// # Errors
/// Usage, if there is no terminal; the store cannot be opened; the terminal failed.
pub(crate) async fn top(args: TopArgs) -> Result<Exit, Problem> {
    check_terminal().map_err(|text| Problem::new(Exit::Usage, text))?;
    let store = StoreUrl::named(args.store.url.as_deref())?.read_only();
    let locks = store.open(Note::default()).await?;
    let settings = Settings {
        store: store.shown(),
        prefix: args.prefix,
        interval: args.interval,
        read_only: args.read_only,
        is_coloured: Paint::of_stdout() == Paint::Coloured,
        reason: reason(),
    };
    // A warning of the store, written over the view, would spoil it until the next full frame.
    let stderr =
        Stderr::start().map_err(|error| Problem::new(Exit::NotStarted, format!("cannot start: {error}")))?;
    stderr.keep();
    stderr.flush().await;
    let ended = run(locks, settings).await;
    stderr.resume();
    stderr.flush().await;
    let ended = ended?;
    ended.messages.iter().for_each(|text| complain(text));
    Ok(ended.signal.map_or(Exit::Done, Exit::Signal))
}

/// Returns the reason that a holder sees, unless the person types another one.
fn reason() -> String {
    let user = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let user =
        user.filter(|user| !user.is_empty() && user.len() < 100).unwrap_or_else(|| "an operator".to_owned());
    format!("asked by {user} at {host}")
}
