//! The table of ids: the hold of each of them, and the end of the last ones.
//!
//! Ground rules: an id that has ended stays known for a while, so that a request which arrives late, or twice, can
//! not take the lock again. Both parts of the table are bounded.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::Moment;
use tokio::sync::{Notify, mpsc};

use super::command::Command;
use super::end::End;
use super::request::HoldRequest;
use crate::config::Limits;
use crate::problem::{Code, Problem};

/// All ids.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<Ids>);

#[derive(Debug, Default)]
struct Ids {
    live: HashMap<String, Handle>,
    waiting: usize,
    /// How ids ended; `None` for one that was released before this server knew of it.
    ended: HashMap<Arc<str>, Option<End>>,
    /// The ids that ended, the first ones in front.
    order: VecDeque<(Moment, Arc<str>)>,
}

/// The way to the task of one id.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    pub(super) request: Arc<HoldRequest>,
    pub(super) commands: mpsc::Sender<Command>,
    /// Wakes the task when a client has gone.
    pub(super) wake: Arc<Notify>,
}

impl Handle {
    /// Sends a command; `None` if the task has ended.
    ///
    /// This consumes the handle, so that no request has one while it waits for an answer. A command that is sent while
    /// the task ends may stay in the channel. It is dropped with the last handle, and the request then knows.
    pub(super) async fn send(self, command: Command) -> Option<()> {
        self.commands.send(command).await.ok()
    }
}

/// The meaning of an id.
pub(super) enum Found {
    Live(Handle),
    Ended(End),
    /// It was released before this server knew of it.
    Overtaken,
    Nothing,
}

impl Table {
    fn ids(&self) -> MutexGuard<'_, Ids> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, id: &str) -> Found {
        let ids = self.ids();
        match (ids.live.get(id), ids.ended.get(id)) {
            (Some(handle), _) => Found::Live(handle.clone()),
            (None, Some(Some(end))) => Found::Ended(*end),
            (None, Some(None)) => Found::Overtaken,
            (None, None) => Found::Nothing,
        }
    }

    /// Returns the task of this id; if there is none, `begin` starts one.
    ///
    /// It calls `is_closing` while the table is locked: the end of the server counts the ids after it has set that,
    /// so it counts each id that was let in.
    ///
    /// # Errors
    /// `id_reused` for another request, the end of an id that has ended, `closing`, and the limits.
    pub(super) fn enter(
        &self,
        id: &str,
        request: &HoldRequest,
        limits: &Limits,
        is_closing: impl FnOnce() -> bool,
        begin: impl FnOnce() -> Handle,
    ) -> Result<Handle, Problem> {
        let mut ids = self.ids();
        if let Some(handle) = ids.live.get(id) {
            if *handle.request == *request {
                return Ok(handle.clone());
            }
            let text =
                "this id was sent before with another request: choose a new random id for each request";
            return Err(Problem::new(Code::IdReused, text));
        }
        if let Some(end) = ids.ended.get(id) {
            return Err(end.unwrap_or(End::Released).problem());
        }
        if is_closing() {
            return Err(Problem::new(Code::Closing, "the server is about to end: try again later"));
        }
        if ids.live.len() >= limits.holds {
            let text =
                format!("{} locks are held or waited for, which is the limit: release some", limits.holds);
            return Err(Problem::new(Code::TooManyHolds, text));
        }
        if ids.waiting >= limits.waiters {
            let text = format!("{} requests wait, which is the limit: try again later", limits.waiters);
            return Err(Problem::new(Code::TooManyWaiters, text));
        }
        let handle = begin();
        ids.waiting += 1;
        ids.live.insert(id.to_owned(), handle.clone());
        Ok(handle)
    }

    /// Records that an id without a task was released: a release that overtakes its request.
    pub(super) fn record(&self, id: &str, now: Moment) {
        self.ids().record(id, None, now);
    }

    /// Returns the numbers of ids that hold, and of those that wait.
    pub(super) fn counts(&self) -> (usize, usize) {
        let ids = self.ids();
        (ids.live.len().saturating_sub(ids.waiting), ids.waiting)
    }
}

impl Ids {
    fn record(&mut self, id: &str, end: Option<End>, now: Moment) {
        let id: Arc<str> = id.into();
        if self.ended.insert(id.clone(), end).is_none() {
            self.order.push_back((now, id));
        }
        while let Some((at, _)) = self.order.front()
            && (self.order.len() > ENDED_MAX || now.since(*at) > ENDED_FOR)
        {
            if let Some((_, oldest)) = self.order.pop_front() {
                self.ended.remove(&oldest);
            }
        }
    }
}

/// The place of one id in the table, which it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    table: Arc<Table>,
    id: String,
    is_waiting: bool,
    /// Its end, and the moment of it; `None` if nothing of it has to be known.
    end: Option<(End, Moment)>,
}

impl Place {
    pub(super) fn new(table: Arc<Table>, id: &str) -> Place {
        Place { table, id: id.to_owned(), is_waiting: true, end: None }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Counts it as held.
    pub(super) fn granted(&mut self) {
        if std::mem::replace(&mut self.is_waiting, false) {
            let mut ids = self.table.ids();
            ids.waiting = ids.waiting.saturating_sub(1);
        }
    }

    /// Sets how it ends.
    pub(super) fn ended(&mut self, end: End, now: Moment) {
        self.end = Some((end, now));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.granted();
        let mut ids = self.table.ids();
        ids.live.remove(&self.id);
        if let Some((end, now)) = self.end {
            ids.record(&self.id, Some(end), now);
        }
    }
}

/// The time for which an id that has ended stays known.
const ENDED_FOR: Duration = Duration::from_secs(600);
/// The most ids that have ended and stay known: a hundred ends a second for that time, and some 10 MB.
const ENDED_MAX: usize = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(name: &str) -> Handle {
        let request = serde_json::from_str(&format!(r#"{{"name":"{name}"}}"#)).unwrap();
        Handle { request: Arc::new(request), commands: mpsc::channel(1).0, wake: Arc::default() }
    }

    fn enter(table: &Table, id: &str, name: &str, limits: &Limits) -> Result<Handle, Code> {
        let new = handle(name);
        table.enter(id, &new.request.clone(), limits, || false, || new).map_err(|problem| problem.code)
    }

    #[test]
    fn id_stands_for_one_request_and_stays_known_after_its_end() {
        let (table, limits) = (Arc::new(Table::default()), Limits::default());
        enter(&table, "a", "lock", &limits).unwrap();
        enter(&table, "a", "lock", &limits).unwrap();
        assert_eq!(enter(&table, "a", "other", &limits).unwrap_err(), Code::IdReused);
        assert_eq!(table.counts(), (0, 1));
        let mut place = Place::new(table.clone(), "a");
        place.granted();
        assert_eq!(table.counts(), (1, 0));
        place.ended(End::Lost("expired"), Moment::START);
        drop(place);
        assert_eq!(table.counts(), (0, 0));
        assert_eq!(enter(&table, "a", "lock", &limits).unwrap_err(), Code::Lost);
        table.record("b", Moment::START.after(ENDED_FOR));
        assert_eq!(enter(&table, "b", "lock", &limits).unwrap_err(), Code::Released);
        table.record("c", Moment::START.after(ENDED_FOR * 2));
        assert!(enter(&table, "a", "lock", &limits).is_ok());
    }

    #[test]
    fn server_that_ends_lets_no_new_id_in() {
        let (table, limits) = (Arc::new(Table::default()), Limits::default());
        enter(&table, "a", "lock", &limits).unwrap();
        let enter = |id: &str| {
            let new = handle("lock");
            table.enter(id, &new.request.clone(), &limits, || true, || new).map_err(|problem| problem.code)
        };
        assert!(enter("a").is_ok(), "one that it knows gets its answer");
        assert_eq!(enter("b").unwrap_err(), Code::Closing);
        assert_eq!(table.counts(), (0, 1));
    }

    #[test]
    fn numbers_are_limited() {
        let table = Arc::new(Table::default());
        let mut limits = Limits { waiters: 1, holds: 2, ..Limits::default() };
        enter(&table, "a", "x", &limits).unwrap();
        assert_eq!(enter(&table, "b", "x", &limits).unwrap_err(), Code::TooManyWaiters);
        Place::new(table.clone(), "a").granted();
        limits.holds = 0;
        assert_eq!(enter(&table, "b", "x", &limits).unwrap_err(), Code::TooManyHolds);
        for number in 0..=ENDED_MAX {
            table.record(&number.to_string(), Moment::START);
        }
        assert_eq!(table.ids().ended.len(), ENDED_MAX);
        assert!(matches!(table.find("0"), Found::Nothing));
    }

    #[test]
    fn hundred_ends_a_second_stay_known_for_the_whole_time() {
        let table = Table::default();
        for number in 0..60_000 {
            table.record(&number.to_string(), Moment::from_millis(10 * number));
        }
        assert!(matches!(table.find("0"), Found::Overtaken));
    }
}
