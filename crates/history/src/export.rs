//! Exports for checkers of others, so that a stranger can judge the same history again.
//!
//! Ground rules: such checkers take the order of the lines as that of time. A recorder receives the invocation of one
//! process after the answer that it led to at another one, so its own order will not do. Lines are written as they
//! come: an export is as long as its history, and is never held as a whole.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::history::History;
use crate::view::{Call, GrantLife, Stamps, View};

mod edn;
mod jepsen_log;
mod mutex;
mod order;
mod porcupine;

use order::Placed;

/// A format that another checker reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Every event as an EDN map a line, with all its values, as Jepsen and Knossos have them. `:index` counts the
    /// lines, and `:i` is the place of the event in the history.
    Edn,
    /// The acquisitions and releases of one lock with `:value nil`, for `knossos.model/mutex`.
    ///
    /// The model knows no leases. A grant that was lost, or whose process was killed, gets a release of unknown
    /// outcome at the end of its validity, so that the model may free the lock from then on.
    EdnMutex,
    /// Lines with tabs, as the test data of Porcupine: the register and the lock of one key. Its own reader of such
    /// lines takes the reads and writes, and passes over the rest.
    JepsenLog,
    /// An array of operations with `client`, `input`, `call`, `output` and `return`, whose spans are closed, as
    /// Porcupine's `Operation` has them.
    PorcupineJson,
}

impl Format {
    /// All formats.
    pub const ALL: &'static [Format] =
        &[Format::Edn, Format::EdnMutex, Format::JepsenLog, Format::PorcupineJson];

    /// Returns the end of a file's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Format::Edn => "edn",
            Format::EdnMutex => "mutex.edn",
            Format::JepsenLog => "log",
            Format::PorcupineJson => "porcupine.json",
        }
    }

    /// Returns `true` if the format has one lock a file.
    pub fn is_for_one_key(self) -> bool {
        matches!(self, Format::EdnMutex | Format::JepsenLog)
    }
}

/// The exports of one history, whose events are put together once for all of them.
#[derive(Debug)]
pub struct Exporter<'h> {
    view: View<'h>,
    /// All events in the order of time.
    events: Vec<Placed<'h>>,
    locks: BTreeMap<&'h str, OfLock>,
}

/// The events, calls and grants of one lock, by their places in the lists of all locks.
#[derive(Debug, Default)]
struct OfLock {
    events: Vec<usize>,
    calls: Vec<usize>,
    grants: Vec<usize>,
}

impl<'h> Exporter<'h> {
    fn of(history: &'h History) -> Exporter<'h> {
        let view = View::of(history, Stamps::Own);
        let events = order::ordered(&view);
        let mut locks: BTreeMap<&str, OfLock> = BTreeMap::new();
        for (place, placed) in events.iter().enumerate() {
            if let Some(key) = placed.event.key.as_deref() {
                locks.entry(key).or_default().events.push(place);
            }
        }
        for (place, call) in view.calls.iter().enumerate() {
            if let Some(key) = call.invoke.key.as_deref() {
                locks.entry(key).or_default().calls.push(place);
            }
        }
        for (place, grant) in view.grants.iter().enumerate() {
            locks.entry(grant.key).or_default().grants.push(place);
        }
        Exporter { view, events, locks }
    }

    /// Returns the names of the locks, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &'h str> {
        self.locks.keys().copied()
    }

    /// Writes the history in the format of another checker.
    ///
    /// With a `key`, only what is about that lock; [`Format::EdnMutex`] and [`Format::JepsenLog`] make sense for
    /// one lock only, and take the first one if none is given.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn write(&self, format: Format, key: Option<&str>, mut output: impl Write) -> io::Result<()> {
        let out = &mut output;
        let one = || key.or_else(|| self.keys().next()).unwrap_or_default();
        match format {
            Format::Edn => edn::all(self, key, out)?,
            Format::EdnMutex => mutex::one(self, one(), out)?,
            Format::JepsenLog => jepsen_log::one(self, one(), out)?,
            Format::PorcupineJson => porcupine::all(self, key, out)?,
        }
        out.flush()
    }

    /// Returns the events of one lock, in the order of time.
    fn events_of(&self, key: &str) -> impl Iterator<Item = &Placed<'h>> {
        let places = self.locks.get(key).map_or(&[][..], |of| &of.events);
        places.iter().map(|place| &self.events[*place])
    }

    /// Returns the calls of one lock, in the order of their invocations.
    fn calls_of(&self, key: &str) -> impl Iterator<Item = &Call<'h>> {
        let places = self.locks.get(key).map_or(&[][..], |of| &of.calls);
        places.iter().map(|place| &self.view.calls[*place])
    }

    /// Returns the grants of one lock.
    fn grants_of(&self, key: &str) -> impl Iterator<Item = &GrantLife<'h>> {
        let places = self.locks.get(key).map_or(&[][..], |of| &of.grants);
        places.iter().map(|place| &self.view.grants[*place])
    }
}

impl History {
    /// Returns the names of the locks, sorted.
    pub fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.events().iter().filter_map(|event| event.key.as_deref()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns what writes the exports of this history.
    ///
    /// ```
    /// use leasehold_history::{Format, History};
    ///
    /// let text = r#"{"i":0,"t":5,"p":1,"type":"invoke","f":"acquire","key":"job"}"#;
    /// let history = History::read(text.as_bytes())?;
    /// let mut lines = Vec::new();
    /// history.exporter().write(Format::EdnMutex, None, &mut lines)?;
    /// assert_eq!(lines, b"{:process 0, :type :invoke, :f :acquire, :value nil, :time 5, :index 0}\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exporter(&self) -> Exporter<'_> {
        Exporter::of(self)
    }

    /// Returns the history in the format of another checker, as [`Exporter::write`] writes it.
    pub fn export(&self, format: Format, key: Option<&str>) -> String {
        let mut bytes = Vec::new();
        // Writing to memory does not fail.
        let _ = self.exporter().write(format, key, &mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
