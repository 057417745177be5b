//! `ls --deadlocks`: shows which waiters wait for each other so that none can continue.

use std::io::{self, Write};

use leasehold::{Deadlock, Note, Resource};

use crate::exit::{Exit, Problem, even_unread};
use crate::output::json;
use crate::output::paint::Paint;
use crate::output::table::Table;
use crate::output::text::{visible, visible_name};
use crate::request::args::ListArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold ls --deadlocks`.
///
/// # Errors
/// The store failed; refused where it does not show whole notes; stdout cannot be written.
pub(crate) async fn deadlocks(args: ListArgs) -> Result<Exit, Problem> {
    let locks = StoreUrl::named(args.store.url.as_deref())?.read_only().open(Note::default()).await?;
    let found = locks.deadlocks().await?;
    let mut out = io::stdout().lock();
    even_unread(match args.json {
        true => found.iter().try_for_each(|deadlock| json::line(&mut out, deadlock)),
        false => found.iter().try_for_each(|deadlock| print(&mut out, deadlock, Paint::of_stdout())),
    })?;
    Ok(if found.is_empty() { Exit::Done } else { Exit::DeadlockFound })
}

/// Writes a line for each waiter, behind the one that waits for it.
fn print(out: &mut impl Write, deadlock: &Deadlock, paint: Paint) -> io::Result<()> {
    writeln!(out, "{}", paint.red(&format!("deadlock of {}", deadlock.waits.len())))?;
    let mut table = Table::default();
    for wait in &deadlock.waits {
        let holds: Vec<String> = wait.holds.iter().map(Resource::as_str).map(visible_name).collect();
        table.row([
            format!("  {}", visible(&wait.note)),
            format!("holds {}", holds.join(", ")),
            format!("waits for {} ({})", visible_name(wait.resource.as_str()), wait.share),
        ]);
    }
    table.write(out)
}
