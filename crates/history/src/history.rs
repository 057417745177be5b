//! A history: the events of one recording, in the order of their index, and its file.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, Write};

use crate::event::{Event, Operation, Stage};

/// The events of one recording, in order.
///
/// ```
/// use leasehold_history::{Event, History, Operation, Stage};
///
/// let text = r#"{"i":0,"t":5,"p":1,"type":"invoke","f":"acquire","key":"job"}
/// {"i":1,"t":9,"p":1,"type":"ok","f":"acquire","key":"job","v":{"owner":"c1","fence":[0,7,0]}}"#;
/// let history = History::read(text.as_bytes())?;
/// assert_eq!(history.events()[1].stage, Stage::Ok);
/// assert_eq!(history.to_text(), format!("{text}\n"));
/// # Ok::<(), leasehold_history::ReadError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    events: Vec<Event>,
}

/// The error of a text that is not a history.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReadError {
    /// The line, from 1 on.
    pub line: usize,
    /// The problem with it.
    pub what: String,
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {} of the history: {}", self.line, self.what)
    }
}

impl std::error::Error for ReadError {}

impl History {
    /// Creates a history of these events, and numbers them in their order.
    pub fn new(events: impl IntoIterator<Item = Event>) -> History {
        let mut events: Vec<Event> = events.into_iter().collect();
        for (index, event) in (0..).zip(&mut events) {
            event.index = index;
        }
        History { events }
    }

    /// Returns the events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the first event that describes the recording, if there is one.
    pub fn plan(&self) -> Option<&Event> {
        self.events.iter().find(|event| event.operation == Operation::Plan)
    }

    /// Returns the seed of the recording.
    pub fn seed(&self) -> Option<u64> {
        self.plan()?.values.seed
    }

    /// Returns the events about faults.
    pub fn faults(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| event.operation == Operation::Fault)
    }

    /// Reads a history from JSON Lines. Empty lines are passed over.
    ///
    /// # Errors
    /// If a line is not an event, if an index does not rise, if a process begins an operation while another one of it
    /// is open or unknown, if it completes one under another name, or if it has events after a fault that killed it:
    /// with the number of the line.
    pub fn read(input: impl BufRead) -> Result<History, ReadError> {
        let mut history = History::default();
        let mut rules = Rules::default();
        for (number, line) in input.lines().enumerate() {
            let error = |what: String| ReadError { line: number + 1, what };
            let line = line.map_err(|failure| error(format!("cannot be read: {failure}")))?;
            if line.trim().is_empty() {
                continue;
            }
            let event: Event = serde_json::from_str(&line).map_err(|failure| error(failure.to_string()))?;
            rules.follow(&event).map_err(error)?;
            history.events.push(event);
        }
        Ok(history)
    }

    /// Writes the history as JSON Lines.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn write(&self, mut output: impl Write) -> std::io::Result<()> {
        for event in &self.events {
            serde_json::to_writer(&mut output, event)?;
            output.write_all(b"\n")?;
        }
        output.flush()
    }

    /// Returns the history as JSON Lines.
    pub fn to_text(&self) -> String {
        let mut bytes = Vec::new();
        // Writing to memory does not fail.
        let _ = self.write(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Checks that the history is well formed, as [`History::read`] does.
    ///
    /// # Errors
    /// As [`History::read`], with the place of the event, counted from 1.
    pub fn validate(&self) -> Result<(), ReadError> {
        let mut rules = Rules::default();
        for (number, event) in self.events.iter().enumerate() {
            rules.follow(event).map_err(|what| ReadError { line: number + 1, what })?;
        }
        Ok(())
    }
}

/// The rules that hold from line to line.
#[derive(Debug, Default)]
struct Rules {
    last: Option<u64>,
    /// The open operation of each process, with its lock; `None` after an unknown outcome.
    open: HashMap<u64, Option<(Operation, Option<String>)>>,
    /// The processes that were killed.
    dead: HashSet<u64>,
}

impl Rules {
    fn follow(&mut self, event: &Event) -> Result<(), String> {
        if self.last.is_some_and(|last| event.index <= last) {
            return Err(format!("index {} does not rise; sort the events by \"i\"", event.index));
        }
        self.last = Some(event.index);
        if event.is_death() {
            self.dead.extend(&event.values.target);
        }
        let Some(process) = event.process else { return Ok(()) };
        let word = event.operation.word();
        if self.dead.contains(&process) {
            return Err(format!(
                "process {process} has the event {word} after it was killed; give what runs then a new number"
            ));
        }
        match (event.stage, self.open.get(&process)) {
            (Stage::Invoke, Some(None)) => Err(format!(
                "process {process} begins {word} after an outcome that is unknown; give it a new number"
            )),
            (Stage::Invoke, Some(Some((open, _)))) => Err(format!(
                "process {process} begins {word} while its {} is open; it does one thing at a time",
                open.word()
            )),
            (Stage::Invoke, None) => {
                self.open.insert(process, Some((event.operation, event.key.clone())));
                Ok(())
            }
            // Observations come without an invocation, at any time.
            (_, Some(Some((open, key)))) if *open == event.operation => {
                if *key != event.key {
                    return Err(format!(
                        "process {process} completes {word} with another \"key\" than it has begun it with; \
                         an operation is about one lock"
                    ));
                }
                if event.stage == Stage::Info {
                    self.open.insert(process, None);
                } else {
                    self.open.remove(&process);
                }
                Ok(())
            }
            _ if matches!(event.operation, Operation::Renew | Operation::Restate | Operation::Lost) => Ok(()),
            _ => Err(format!("process {process} completes {word}, which it has not begun")),
        }
    }
}
