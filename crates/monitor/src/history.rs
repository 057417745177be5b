//! Which claims held a lock, as far as it was watched.

use std::collections::VecDeque;

use leasehold::{ClaimInfo, Fence, Note, Share, Snapshot};
use serde::Serialize;

/// The claims that held a lock, the latest grant last.
///
/// A hold that began and ended between two looks is not seen. The fences show that: they rise with each grant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct History {
    holdings: VecDeque<Holding>,
    #[serde(skip)]
    limit: usize,
}

/// One claim that holds or held a lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Holding {
    /// The public name of the claim.
    pub tag: String,
    /// Its share.
    pub share: Share,
    /// Its fence.
    pub fence: Option<Fence>,
    /// Its note, as it was seen last.
    pub note: Note,
    /// The time of the grant on the server's clock, in milliseconds of the Unix epoch.
    pub since_unix_ms: Option<u64>,
    /// The time at which it was seen to hold first, by this machine's clock.
    pub seen_unix_ms: u64,
    /// The end of the hold; `None` while it holds.
    pub ending: Option<Ending>,
}

/// The end of a hold, between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Ending {
    /// The time at which the claim was seen to hold last.
    pub last_seen_unix_ms: u64,
    /// The time at which it was seen to be gone.
    pub gone_unix_ms: u64,
}

impl History {
    /// Creates an empty record that keeps so many holds, and all present ones.
    pub fn new(limit: usize) -> History {
        History { holdings: VecDeque::new(), limit }
    }

    /// Returns the holds, the latest grant last.
    pub fn holdings(&self) -> impl DoubleEndedIterator<Item = &Holding> + ExactSizeIterator {
        self.holdings.iter()
    }

    /// Records what a look has shown. `before` is the time of the look before, if there was one.
    pub fn record(&mut self, snapshot: &Snapshot, before_unix_ms: Option<u64>, now_unix_ms: u64) {
        let tags: Vec<String> = snapshot.holders.iter().map(|holder| holder.id.tag()).collect();
        for holding in self.holdings.iter_mut().filter(|holding| holding.ending.is_none()) {
            match tags.iter().position(|tag| *tag == holding.tag) {
                Some(at) => holding.update(&snapshot.holders[at]),
                None => {
                    let last_seen_unix_ms = before_unix_ms.unwrap_or(holding.seen_unix_ms);
                    holding.ending = Some(Ending { last_seen_unix_ms, gone_unix_ms: now_unix_ms });
                }
            }
        }
        for (holder, tag) in snapshot.holders.iter().zip(tags) {
            let is_known = self.holdings.iter().any(|holding| holding.ending.is_none() && holding.tag == tag);
            if !is_known {
                self.holdings.push_back(Holding::of(holder, tag, now_unix_ms));
            }
        }
        self.forget();
    }

    /// Forgets the oldest holds that have ended.
    fn forget(&mut self) {
        while self.holdings.len() > self.limit {
            let Some(at) = self.holdings.iter().position(|holding| holding.ending.is_some()) else { return };
            self.holdings.remove(at);
        }
    }
}

impl Holding {
    fn of(holder: &ClaimInfo, tag: String, seen_unix_ms: u64) -> Holding {
        Holding {
            tag,
            share: holder.share,
            fence: holder.fence,
            note: holder.note.clone(),
            since_unix_ms: holder.since_unix_ms,
            seen_unix_ms,
            ending: None,
        }
    }

    /// Takes over what changes while a claim holds: the fence and the note of a transfer.
    fn update(&mut self, holder: &ClaimInfo) {
        (self.fence, self.share) = (holder.fence, holder.share);
        self.note.clone_from(&holder.note);
    }
}
