//! Exports for checkers of others, so that a stranger can judge the same history again.

use crate::history::History;
use crate::view::{Stamps, View};

mod edn;
mod jepsen_log;
mod mutex;
mod porcupine;

/// A format that another checker reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Every event as an EDN map a line, with all its values, as Jepsen and Knossos have them.
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

impl History {
    /// Returns the names of the locks, sorted.
    pub fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.events().iter().filter_map(|event| event.key.as_deref()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns the history in the format of another checker.
    ///
    /// With a `key`, only what is about that lock; [`Format::EdnMutex`] and [`Format::JepsenLog`] make sense for
    /// one lock only, and take the first one if none is given.
    ///
    /// ```
    /// use leasehold_history::{Format, History};
    ///
    /// let text = r#"{"i":0,"t":5,"p":1,"type":"invoke","f":"acquire","key":"job"}"#;
    /// let history = History::read(text.as_bytes())?;
    /// assert_eq!(
    ///     history.export(Format::EdnMutex, None),
    ///     "{:process 0, :type :invoke, :f :acquire, :value nil, :time 5, :index 0}\n"
    /// );
    /// # Ok::<(), leasehold_history::ReadError>(())
    /// ```
    pub fn export(&self, format: Format, key: Option<&str>) -> String {
        let view = View::of(self, Stamps::Own);
        let first = self.keys().first().copied().unwrap_or_default();
        match format {
            Format::Edn => edn::all(&view, key),
            Format::EdnMutex => mutex::one(&view, key.unwrap_or(first)),
            Format::JepsenLog => jepsen_log::one(&view, key.unwrap_or(first)),
            Format::PorcupineJson => porcupine::all(&view, key),
        }
    }
}
