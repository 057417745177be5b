//! The task that refreshes the picture: one listing, some looks, and now and then a search for deadlocks.
//!
//! Ground rules: the next request begins only after the answer to the one before. The locks in focus are
//! looked at first, then those that have changed, then those whose look is the oldest. A lock that cannot be read
//! waits for its next turn as the others do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::backend::deadlock::Places;
use leasehold::{Client, Error, ErrorKind, Resource, Result, Snapshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::cost::{after_failure, least_pause, looks_in, pause_after};
use crate::options::Options;
use crate::overview::{DeadlockReport, Outage, Overview};
use crate::row::{LockDetail, LockRow};
use crate::shared::Shared;
use crate::text::unix_ms_now;

/// The state of the task between two refreshes.
pub(crate) struct Refresher {
    client: Client,
    options: Options,
    shared: Arc<Shared>,
    picture: Overview,
    details: HashMap<Resource, LockDetail>,
    /// The times of the last looks that failed, in milliseconds of the Unix epoch.
    unread: HashMap<Resource, u64>,
    /// The resources where waits are announced, which are not locks of users.
    places: HashSet<Resource>,
    /// The time of the last search for deadlocks.
    searched: Option<Instant>,
}

/// The locks of one listing.
struct Listing {
    rows: Vec<LockRow>,
    truncated: bool,
    /// `true` if a wait may be announced.
    announces: bool,
}

impl Refresher {
    pub(crate) fn new(client: Client, options: Options, shared: Arc<Shared>) -> Refresher {
        let places = Places::of(client.profile()).map(|places| places.names).unwrap_or_default();
        let mut picture = Overview::default();
        if let Err(unmet) = client.profile().announces_waits() {
            picture.deadlocks = DeadlockReport::Unsupported(unmet.to_string());
        }
        let (details, unread) = (HashMap::new(), HashMap::new());
        let places = places.into_iter().collect();
        Refresher { client, options, shared, picture, details, unread, places, searched: None }
    }

    /// Refreshes the picture for ever, while it has receivers.
    pub(crate) async fn run(mut self) {
        let mut failures = 0;
        loop {
            self.shared.until_watched().await;
            let began = Instant::now();
            let mut failed = self.refresh().await.err();
            failures = if failed.is_some() { failures + 1 } else { 0 };
            let (listing, locks) = match failed {
                Some(_) => (after_failure(began.elapsed(), failures), 0),
                None => (self.picture.cost.listing, self.picture.locks.len()),
            };
            let now = Instant::now();
            let pause = pause_after(self.options.interval, listing, locks);
            self.picture.cost.pause = pause;
            self.picture.due = Some(now + pause);
            self.picture.number += 1;
            self.picture.outage = failed.take().map(|error| Outage::of(&error, self.failing_since()));
            self.publish();
            self.rest(now + least_pause(listing, locks).min(pause), now + pause).await;
        }
    }

    /// Waits for the next refresh: until `due`, or until one is requested, but not before `earliest`. Meanwhile,
    /// locks that come into focus are looked at.
    async fn rest(&mut self, earliest: Instant, due: Instant) {
        let shared = self.shared.clone();
        let requested = async move {
            sleep_until(earliest).await;
            shared.until_requested().await;
        };
        let mut requested = std::pin::pin!(requested);
        let shared = self.shared.clone();
        // It lasts until the next listing.
        let of_listing = self.picture.outage.clone();
        loop {
            tokio::select! {
                () = sleep_until(due) => return,
                () = &mut requested => return,
                () = shared.until_focused() => {}
            }
            // A person who turns pages is not followed to each of them.
            sleep(FOCUS_PAUSE).await;
            let is_new = |name: &Resource| !self.details.contains_key(name);
            let names: Vec<Resource> = shared.focus().into_iter().filter(is_new).take(MOST_FOCUSED).collect();
            if !names.is_empty() {
                let looks = self.picture.cost.looks;
                self.picture.outage = match self.look_at(names).await {
                    // What earlier looks found is over, and so is a silence that was reported meanwhile.
                    Ok(()) => of_listing.clone(),
                    Err(error) => Some(Outage::of(&error, self.failing_since())),
                };
                self.picture.cost.looks += looks;
                self.publish();
            }
        }
    }

    /// Refreshes the picture once.
    async fn refresh(&mut self) -> Result<()> {
        let began = Instant::now();
        let Listing { rows, truncated, announces } = self.list().await?;
        self.picture.cost.listing = began.elapsed();
        self.picture.at_unix_ms = Some(unix_ms_now());
        self.picture.truncated = truncated;
        let names: HashSet<&Resource> = rows.iter().map(|row| &row.name).collect();
        self.details.retain(|name, _| names.contains(name));
        self.unread.retain(|name, _| names.contains(name));
        let to_look = self.order_of_looks(&rows);
        self.picture.locks = rows;
        self.add_details();
        // A new picture whose looks have failed has answered after all.
        self.picture.outage = None;
        self.publish();
        self.look_at(to_look).await?;
        self.search_deadlocks(announces).await
    }

    /// Lists the locks. One more than is kept shows that there are more.
    async fn list(&mut self) -> Result<Listing> {
        let (client, limit) = (self.client.clone(), self.options.limit);
        let prefix = self.options.prefix.clone();
        let wanted = limit.saturating_add(self.places.len()).saturating_add(1);
        let asked = async move { client.list(prefix.as_deref().unwrap_or(""), None, wanted).await };
        let listed = self.attend(asked).await?;
        let is_whole = self.options.prefix.is_none() && listed.len() < wanted;
        let mut announces = !is_whole;
        let mut rows = Vec::with_capacity(listed.len());
        for summary in listed {
            if self.places.contains(&summary.resource) {
                announces = true;
            } else {
                rows.push(LockRow::new(summary));
            }
        }
        let truncated = rows.len() > limit;
        rows.truncate(limit);
        Ok(Listing { rows, truncated, announces })
    }

    /// Returns the locks to look at in this refresh, the most important first.
    fn order_of_looks(&self, rows: &[LockRow]) -> Vec<Resource> {
        let focus: HashSet<Resource> = self.shared.focus().into_iter().collect();
        let rank = |row: &LockRow| {
            let detail = self.details.get(&row.name).cloned();
            let looked = detail.as_ref().map_or(0, |detail| detail.at_unix_ms);
            let unread = self.unread.get(&row.name).copied();
            let is_seen = unread.is_some() || row.clone().detail(detail).agrees();
            (!focus.contains(&row.name), is_seen, looked.max(unread.unwrap_or(0)))
        };
        let mut ranked: Vec<_> = rows.iter().map(|row| (rank(row), &row.name)).collect();
        ranked.sort();
        let pause = pause_after(self.options.interval, self.picture.cost.listing, rows.len());
        ranked.into_iter().take(looks_in(pause)).map(|(_, name)| name.clone()).collect()
    }

    /// Looks at these locks, a few at a time, for as long as the pause that follows. A lock that cannot be read is
    /// passed over.
    ///
    /// # Errors
    /// That of a store that answers nothing.
    async fn look_at(&mut self, names: Vec<Resource>) -> Result<()> {
        let began = Instant::now();
        let mut seen: HashMap<Resource, Arc<Snapshot>> = HashMap::new();
        let mut failed = None;
        for some in names.chunks(LOOKS_AT_ONCE) {
            if began.elapsed() > self.options.interval.max(LEAST_TIME_OF_LOOKS) {
                break;
            }
            let (client, some) = (self.client.clone(), some.to_vec());
            let asked = async move {
                let looks = join_all(some.iter().map(|name| client.inspect(name))).await;
                Ok(some.into_iter().zip(looks).collect::<Vec<_>>())
            };
            let looks = self.attend(asked).await?;
            let at_unix_ms = unix_ms_now();
            let (mut is_answered, mut refused) = (false, None);
            for (name, look) in looks {
                match look.map(Arc::new) {
                    Ok(snapshot) => {
                        is_answered = true;
                        self.unread.remove(&name);
                        self.details.insert(name.clone(), LockDetail::new(snapshot.clone(), at_unix_ms));
                        seen.insert(name, snapshot);
                    }
                    Err(error) => {
                        is_answered |= error.kind() == ErrorKind::Invalid;
                        self.unread.insert(name, at_unix_ms);
                        refused = Some(error);
                    }
                }
            }
            // A store that answers none of them is not asked for more. If it has answered before, the next refresh
            // shows whether that is an outage.
            if let Some(error) = refused.filter(|_| !is_answered) {
                failed = Some(error).filter(|_| seen.is_empty());
                break;
            }
        }
        self.picture.cost.looks = seen.len();
        self.add_details();
        self.correct_counts(&seen);
        failed.map_or(Ok(()), Err)
    }

    fn add_details(&mut self) {
        for row in &mut self.picture.locks {
            row.detail = self.details.get(&row.name).cloned();
        }
    }

    /// Takes the counts from looks that are newer than the listing. What became free meanwhile disappears.
    fn correct_counts(&mut self, seen: &HashMap<Resource, Arc<Snapshot>>) {
        let count = |claims: usize| u32::try_from(claims).unwrap_or(u32::MAX);
        self.picture.locks.retain_mut(|row| {
            if let Some(snapshot) = seen.get(&row.name) {
                (row.holders, row.waiting) = (count(snapshot.holders.len()), count(snapshot.waiting.len()));
            }
            row.holders > 0 || row.waiting > 0
        });
    }

    async fn search_deadlocks(&mut self, announces: bool) -> Result<()> {
        if matches!(self.picture.deadlocks, DeadlockReport::Unsupported(_)) {
            return Ok(());
        }
        let deadlocks = match announces {
            false => Vec::new(),
            true if self.searched.is_some_and(|at| at.elapsed() < SEARCH_INTERVAL) => return Ok(()),
            true => {
                let client = self.client.clone();
                let found = self.attend(async move { client.deadlocks().await }).await?;
                self.searched = Some(Instant::now());
                found
            }
        };
        self.picture.deadlocks = DeadlockReport::Found { at_unix_ms: unix_ms_now(), deadlocks };
        Ok(())
    }

    /// Waits for an answer, and reports if it does not come for long.
    async fn attend<T>(&mut self, asked: impl Future<Output = Result<T, Error>>) -> Result<T> {
        let began = Instant::now();
        let mut asked = std::pin::pin!(asked);
        loop {
            tokio::select! {
                biased;
                answer = &mut asked => return answer,
                () = sleep(SILENCE) => {
                    let silence = began.elapsed();
                    let since = unix_ms_now().saturating_sub(u64::try_from(silence.as_millis()).unwrap_or(0));
                    let since = self.picture.outage.as_ref().map_or(since, |outage| outage.since_unix_ms);
                    self.picture.outage = Some(Outage::silent(since, silence));
                    self.publish();
                }
            }
        }
    }

    fn failing_since(&self) -> u64 {
        self.picture.outage.as_ref().map_or_else(unix_ms_now, |outage| outage.since_unix_ms)
    }

    fn publish(&self) {
        self.shared.sender.send_replace(Arc::new(self.picture.clone()));
    }
}

const LOOKS_AT_ONCE: usize = 8;
/// The time for looks is the interval, or this if it is longer.
const LEAST_TIME_OF_LOOKS: Duration = Duration::from_secs(1);
/// The time without an answer after which the picture says so.
const SILENCE: Duration = Duration::from_secs(5);
/// The time from a change of the focus to the looks at what is new in it.
const FOCUS_PAUSE: Duration = Duration::from_millis(100);
/// The most locks that are looked at because the focus has changed.
const MOST_FOCUSED: usize = 200;
const SEARCH_INTERVAL: Duration = Duration::from_secs(10);
