//! `ls`: the locks that are held or waited for, page by page.

use std::io::{self, BufWriter, Write};

use leasehold::{Client, Note, Resource, ResourceSummary};

use crate::exit::{Exit, Problem};
use crate::output::counter::{Counter, Output};
use crate::output::json;
use crate::output::table::Table;
use crate::output::text::visible_name;
use crate::request::args::ListArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold ls`.
///
/// # Errors
/// The store failed; stdout cannot be written.
pub(crate) async fn list(args: ListArgs) -> Result<Exit, Problem> {
    let locks = StoreUrl::named(args.store.url.as_deref())?.read_only().open(Note::default()).await?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut pages = Pages { locks: &locks, prefix: &args.prefix, after: None, is_last: false };
    let mut counter = Counter::start(Output::Meanwhile);
    let mut count = 0;
    while let Some(page) = pages.next().await? {
        count += page.len();
        counter.show(|| format!("{count} names listed"));
        match args.json {
            true => page.iter().try_for_each(|summary| json::line(&mut out, summary))?,
            false => table(&page).write(&mut out)?,
        }
        out.flush()?;
    }
    counter.end().await;
    Ok(Exit::Done)
}

/// The pages of the list, read one after the other: a store with many locks needs neither much memory nor one long
/// answer.
struct Pages<'a> {
    locks: &'a Client,
    prefix: &'a str,
    after: Option<Resource>,
    is_last: bool,
}

impl Pages<'_> {
    async fn next(&mut self) -> Result<Option<Vec<ResourceSummary>>, Problem> {
        if self.is_last {
            return Ok(None);
        }
        let page = self.locks.list(self.prefix, self.after.as_ref(), PAGE).await?;
        // The names rise from page to page, so this ends however the store changes meanwhile.
        self.is_last = page.len() < PAGE;
        self.after = page.last().map(|summary| summary.resource.clone());
        Ok(Some(page).filter(|page| !page.is_empty()))
    }
}

fn table(page: &[ResourceSummary]) -> Table {
    let mut table = Table::default();
    for summary in page {
        let waiting =
            if summary.waiting == 0 { String::new() } else { format!("{} waiting", summary.waiting) };
        let held = if summary.holders == 0 { "free".to_owned() } else { format!("{} held", summary.holders) };
        table.row([visible_name(summary.resource.as_str()), held, waiting]);
    }
    table
}

const PAGE: usize = 500;
