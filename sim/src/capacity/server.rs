//! One server: requests that wait for a core, and writes that wait for the disk.
//!
//! Ground rules: it knows no clock. Who calls it plans the ends of what it begins.

use std::collections::VecDeque;

/// The kind of a request, by which it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Takes a lock.
    Acquire,
    /// Ends a claim.
    Release,
    /// Renews a batch, or is sent beside one.
    Renew,
    /// Puts a waiter into the queue.
    QueueUp,
    /// Looks for waiters, or keeps their places.
    Look,
    /// Notifies a waiter. It is work of the server, and not a request.
    Wake,
}

/// A request and who waits for its answer.
#[derive(Clone, Debug)]
pub struct Request<O> {
    /// Its kind.
    pub kind: Kind,
    /// The processor time that it takes, in nanoseconds.
    pub service: u64,
    /// `true` if it is answered after a sync.
    pub is_durable: bool,
    /// The sender.
    pub origin: O,
}

/// The queue of a server, its cores, and its disk.
#[derive(Debug)]
pub struct ServerQueue<O> {
    cores: u64,
    busy: u64,
    waiting: VecDeque<Request<O>>,
    /// Writes that arrived since the present sync began.
    unsynced: Vec<Request<O>>,
    /// Writes of the present sync.
    in_sync: Vec<Request<O>>,
    /// The counts since the last [`ServerQueue::reset`].
    pub counts: Counts,
}

/// Counts of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Requests by kind, in the order of [`Kind`].
    pub requests: [u64; 6],
    /// Processor time, in nanoseconds.
    pub used: u64,
    /// Syncs that have ended.
    pub syncs: u64,
    /// The longest queue.
    pub longest: usize,
}

impl<O> ServerQueue<O> {
    /// Creates an idle server with so many cores.
    pub fn new(cores: u64) -> ServerQueue<O> {
        let (waiting, unsynced, in_sync) = (VecDeque::new(), Vec::new(), Vec::new());
        ServerQueue { cores, busy: 0, waiting, unsynced, in_sync, counts: Counts::default() }
    }

    /// Begins to count anew.
    pub fn reset(&mut self) {
        self.counts = Counts::default();
    }

    /// Takes a request. Returns it if a core is free, so that it begins now.
    pub fn arrive(&mut self, request: Request<O>) -> Option<Request<O>> {
        self.counts.requests[request.kind as usize] += 1;
        if self.busy == self.cores {
            self.waiting.push_back(request);
            self.counts.longest = self.counts.longest.max(self.waiting.len());
            return None;
        }
        self.busy += 1;
        Some(request)
    }

    /// Ends a request. Returns the one that begins now on its core.
    pub fn served(&mut self, ended: &Request<O>) -> Option<Request<O>> {
        self.counts.used += ended.service;
        let next = self.waiting.pop_front();
        self.busy -= u64::from(next.is_none());
        next
    }

    /// Hands a write to the disk. Returns `true` if a sync begins now.
    pub fn write(&mut self, request: Request<O>) -> bool {
        self.unsynced.push(request);
        self.begin_sync()
    }

    /// Ends a sync. Returns the writes that it made durable, and whether the next one begins now.
    pub fn synced(&mut self) -> (Vec<Request<O>>, bool) {
        self.counts.syncs += 1;
        let done = std::mem::take(&mut self.in_sync);
        let begins = !self.unsynced.is_empty() && self.begin_sync();
        (done, begins)
    }

    /// Begins a sync of all writes that wait, unless one is under way.
    fn begin_sync(&mut self) -> bool {
        if !self.in_sync.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.in_sync, &mut self.unsynced);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(origin: u8) -> Request<u8> {
        Request { kind: Kind::Release, service: 5, is_durable: true, origin }
    }

    #[test]
    fn capacity_requests_wait_for_a_core_in_their_order() {
        let mut server = ServerQueue::new(2);
        assert!(server.arrive(write(1)).is_some() && server.arrive(write(2)).is_some());
        assert!(server.arrive(write(3)).is_none() && server.arrive(write(4)).is_none());
        assert_eq!(server.served(&write(1)).map(|next| next.origin), Some(3));
        assert_eq!(server.served(&write(2)).map(|next| next.origin), Some(4));
        assert!(server.served(&write(3)).is_none() && server.arrive(write(5)).is_some());
        assert_eq!((server.counts.used, server.counts.longest), (15, 2));
    }

    #[test]
    fn capacity_writes_share_the_next_sync() {
        let mut server = ServerQueue::new(1);
        assert!(server.write(write(1)) && !server.write(write(2)) && !server.write(write(3)));
        let (done, begins) = server.synced();
        assert_eq!((done.len(), begins), (1, true));
        let (done, begins) = server.synced();
        assert_eq!((done.len(), begins), (2, false));
        assert_eq!(server.counts.syncs, 2);
    }
}
