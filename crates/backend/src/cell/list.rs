//! A listing of resources, which a store answers page by page.
//!
//! Ground rules: a page that is not full is the last one, however many of its rows are shown. What cannot be
//! read is not ours, and no reason to hide the others.

use leasehold_core::{Resource, ResourceSummary};

use crate::cell::wait::timing::BATCH_MAX;

/// The resources that were found so far, and where the next page begins.
#[derive(Debug)]
pub(crate) struct Listing {
    found: Vec<ResourceSummary>,
    behind: String,
    limit: usize,
    pages_left: u32,
}

impl Listing {
    /// Begins behind this resource. At most `limit` are listed.
    pub(crate) fn new(after: Option<&Resource>, limit: usize) -> Listing {
        let behind = after.map_or_else(String::new, |after| after.as_str().to_owned());
        Listing { found: Vec::new(), behind, limit, pages_left: MAX_PAGES }
    }

    /// Returns the name behind which the next page begins, and its length; `None` where the listing is
    /// complete.
    pub(crate) fn next_page(&self) -> Option<(String, usize)> {
        let missing = self.limit - self.found.len();
        (self.pages_left > 0 && missing > 0).then(|| (self.behind.clone(), missing.min(BATCH_MAX)))
    }

    /// Adds a page of this length: the names in it, and what is to be shown of each.
    pub(crate) fn add(&mut self, length: usize, page: Vec<(String, Option<ResourceSummary>)>) {
        self.pages_left = if page.len() < length { 0 } else { self.pages_left - 1 };
        if let Some((name, _)) = page.last() {
            self.behind.clone_from(name);
        }
        self.found.extend(page.into_iter().filter_map(|(_, summary)| summary));
    }

    /// Returns what was found, in the order of the pages.
    pub(crate) fn into_summaries(self) -> Vec<ResourceSummary> {
        self.found
    }
}

/// Pages that one listing reads at most.
const MAX_PAGES: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists what a store has, of which rows with a `-` are not shown.
    fn list(rows: &[&str], after: Option<&str>, limit: usize) -> (Vec<String>, usize) {
        let after = after.map(|after| Resource::new(after).unwrap());
        let (mut listing, mut pages) = (Listing::new(after.as_ref(), limit), 0);
        while let Some((behind, length)) = listing.next_page() {
            let page = rows.iter().filter(|name| ***name > *behind).take(length);
            let shown = |name: &str| {
                let resource = Resource::new(name).unwrap();
                (!name.contains('-')).then_some(ResourceSummary::new(resource, 1, 0))
            };
            listing.add(length, page.map(|name| ((*name).to_owned(), shown(name))).collect());
            pages += 1;
        }
        let names = listing.into_summaries().into_iter().map(|found| found.resource.as_str().to_owned());
        (names.collect(), pages)
    }

    #[test]
    fn store_whose_pages_are_always_full_is_not_listed_for_ever() {
        let mut listing = Listing::new(None, 1);
        let mut pages = 0;
        while let Some((_, length)) = listing.next_page() {
            listing.add(length, vec![("a".to_owned(), None); length]);
            pages += 1;
            assert!(pages <= MAX_PAGES);
        }
        assert_eq!(pages, MAX_PAGES);
    }

    #[test]
    fn rows_that_are_not_shown_hide_no_others() {
        let rows = ["a", "b-", "c-", "d", "e"];
        assert_eq!(list(&rows, None, 2).0, ["a", "d"]);
        assert_eq!(list(&rows, Some("a"), 1).0, ["d"]);
        assert_eq!(list(&rows, None, 9), (vec!["a".into(), "d".into(), "e".into()], 1));
        assert_eq!(list(&rows, None, 0), (Vec::new(), 0));
        assert_eq!(list(&["a-", "b-"], None, 2).1, 2, "a full page may not be the last");
    }
}
