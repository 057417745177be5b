//! One event of a history: what one process asked for, or saw, at one moment.
//!
//! Ground rules: values only. The text of an event is its JSON, one line each, and unknown fields are refused,
//! so that a history of another format is never judged by half.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One event of a history, which is one line of its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Event {
    /// The place of the event in the history, from 0 on.
    #[serde(rename = "i")]
    pub index: u64,
    /// The time at which the recorder received the event, in nanoseconds of its monotonic clock.
    #[serde(rename = "t")]
    pub received: u64,
    /// The time by the process's own monotonic clock, before an invocation and after a completion.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub stamped: Option<u64>,
    /// The logical process, which does one thing at a time; absent for what the recorder itself did.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u64>,
    /// The stage of the operation.
    #[serde(rename = "type")]
    pub stage: Stage,
    /// The operation.
    #[serde(rename = "f")]
    pub operation: Operation,
    /// The name of the lock; absent for what concerns all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The values of the operation.
    #[serde(rename = "v", default, skip_serializing_if = "Values::is_empty")]
    pub values: Values,
    /// The error, or the cause of a loss.
    #[serde(rename = "err", default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The error of an acquisition whose caller dropped it on its way: it failed, and must have left nothing.
pub const CANCELLED: &str = "cancelled";

/// The target of a fault that is neither on the store nor on any client: no process has this number.
pub const NOBODY: u64 = u64::MAX;

/// The error of an acquisition that was not free within its limit.
pub const BUSY: &str = "busy";

/// The stage of an operation that an event records. No variant will be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The request, before anything of it can have happened.
    Invoke,
    /// The success, after it is certain; of an observation, the moment at which it was made.
    Ok,
    /// The failure: certainly nothing of it happened.
    Fail,
    /// An unknown outcome. The operation stays open for ever, and its process does nothing any more.
    Info,
}

/// The operation that an event is about. `Renew`, `Restate`, `Lost` and all after them may come without an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// The lock is asked for. `mode`, `ttl`, `limit`; then `owner`, `fence`, `valid_until`.
    Acquire,
    /// The lease was extended, with its new `valid_until`.
    Renew,
    /// The end of the validity is stated anew, because the clock of the process was changed: `owner`, `fence`,
    /// `valid_until`. The store has answered nothing.
    Restate,
    /// The lock is released. `owner`, `fence`.
    Release,
    /// The holder was notified of the loss, or saw it by the clock. `owner`, `fence`, `valid_until`.
    Lost,
    /// The protected register is read with `fence`, which raises its fence; then `val`.
    Read,
    /// `val` is written to the protected register with `fence`.
    Write,
    /// The register's own record of a read: `fence`, `highest` before it, `val`. A failure is a refusal.
    ServedRead,
    /// The register's own record of a write: `fence`, `highest` before it, `val`. A failure is a refusal.
    ServedWrite,
    /// A fault begins (`Invoke`) or ends (`Ok`); `Info` is one without an end. `label`, `target`.
    Fault,
    /// The claims that were found after everything had been closed: `label`, and `count` of them. `Ok` if none are left.
    Residue,
    /// The first event of a recording: `seed`, `ttl`, `label` (the store), `grade`.
    Plan,
    /// The recording is drained: all processes were asked to stop, and nothing new is asked for.
    Drain,
}

/// The values of an event; which are present depends on the operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Values {
    /// The grant, by a name that no other grant has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The share of the lock; exclusive if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The fence of the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<FenceValue>,
    /// The highest fence that the register had seen before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub highest: Option<FenceValue>,
    /// The end of the validity, in nanoseconds of the same clock as [`Event::stamped`]; absent if a session
    /// keeps the grant alive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<u64>,
    /// A reentrancy count after the operation, or a number of things.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The value of the register.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val: Option<u64>,
    /// The longest wait of an acquisition, in nanoseconds; absent if it waits without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The ttl in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    /// The seed of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The grade of the fences, in the words of the library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grade: Option<String>,
    /// The name of a fault, of a residue or of a store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The processes that a fault concerns; empty if it concerns all, and [`NOBODY`] alone if it concerns none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<u64>,
}

/// A fencing token, compared from left to right; in JSON `[epoch, seq, sub]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u32)", into = "(u64, u64, u32)")]
#[allow(clippy::exhaustive_structs)]
pub struct FenceValue {
    /// The generation of the store.
    pub epoch: u64,
    /// The counter within the generation.
    pub seq: u64,
    /// The local hand-offs under one grant.
    pub sub: u32,
}

/// The share of a lock; in JSON `"exclusive"`, `"shared"` or `"permits 2/5"`. No variant will be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With any number of others that share.
    Shared,
    /// So many permits of so many.
    Permits {
        /// The permits of this grant, at least 1.
        taken: u32,
        /// The permits of the lock, at least `taken`.
        of: u32,
    },
}

impl Event {
    /// Creates an event without a time, a process and values.
    pub fn new(stage: Stage, operation: Operation) -> Event {
        Event {
            index: 0,
            received: 0,
            stamped: None,
            process: None,
            stage,
            operation,
            key: None,
            values: Values::default(),
            error: None,
        }
    }

    /// Sets both times.
    #[must_use]
    pub fn at(mut self, nanos: u64) -> Event {
        self.received = nanos;
        self.stamped = Some(nanos);
        self
    }

    /// Sets the process.
    #[must_use]
    pub fn by(mut self, process: u64) -> Event {
        self.process = Some(process);
        self
    }

    /// Sets the name of the lock.
    #[must_use]
    pub fn on(mut self, key: impl Into<String>) -> Event {
        self.key = Some(key.into());
        self
    }

    /// Sets the values.
    #[must_use]
    pub fn with(mut self, values: Values) -> Event {
        self.values = values;
        self
    }

    /// Sets the error.
    #[must_use]
    pub fn because(mut self, error: impl Into<String>) -> Event {
        self.error = Some(error.into());
        self
    }

    /// Returns the moment of the event: by the process's own clock if it has one, else by the recorder's.
    pub fn moment(&self) -> u64 {
        self.stamped.unwrap_or(self.received)
    }

    /// Returns `true` if the event is a fault that ends processes.
    pub(crate) fn is_death(&self) -> bool {
        let label = self.values.label.as_deref().unwrap_or_default();
        self.operation == Operation::Fault && (label.starts_with("kill") || label.starts_with("exit"))
    }

    /// Returns `true` if the event begins an operation that another event of its process completes.
    pub fn is_invocation(&self) -> bool {
        self.stage == Stage::Invoke && self.operation != Operation::Fault
    }
}

impl Values {
    /// Returns `true` if no value is present.
    pub fn is_empty(&self) -> bool {
        *self == Values::default()
    }
}

impl Operation {
    /// Returns the word of the operation, as its JSON has it.
    pub fn word(self) -> &'static str {
        match self {
            Operation::Acquire => "acquire",
            Operation::Renew => "renew",
            Operation::Restate => "restate",
            Operation::Release => "release",
            Operation::Lost => "lost",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::ServedRead => "served-read",
            Operation::ServedWrite => "served-write",
            Operation::Fault => "fault",
            Operation::Residue => "residue",
            Operation::Plan => "plan",
            Operation::Drain => "drain",
        }
    }
}

impl Stage {
    /// Returns the word of the stage, as its JSON has it.
    pub fn word(self) -> &'static str {
        match self {
            Stage::Invoke => "invoke",
            Stage::Ok => "ok",
            Stage::Fail => "fail",
            Stage::Info => "info",
        }
    }
}

impl FenceValue {
    /// Creates the fence from its parts.
    pub const fn new(epoch: u64, seq: u64, sub: u32) -> FenceValue {
        FenceValue { epoch, seq, sub }
    }
}

impl From<(u64, u64, u32)> for FenceValue {
    fn from((epoch, seq, sub): (u64, u64, u32)) -> FenceValue {
        FenceValue { epoch, seq, sub }
    }
}

impl From<FenceValue> for (u64, u64, u32) {
    fn from(fence: FenceValue) -> (u64, u64, u32) {
        (fence.epoch, fence.seq, fence.sub)
    }
}

impl fmt::Display for FenceValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.epoch, self.seq, self.sub)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permits { taken, of } => write!(f, "permits {taken}/{of}"),
        }
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> String {
        mode.to_string()
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        let permits = || {
            let (taken, of) = text.strip_prefix("permits ")?.split_once('/')?;
            let (taken, of) = (taken.parse().ok()?, of.parse().ok()?);
            (taken >= 1 && taken <= of).then_some(Mode::Permits { taken, of })
        };
        match text {
            "exclusive" => Ok(Mode::Exclusive),
            "shared" => Ok(Mode::Shared),
            _ => permits().ok_or_else(|| {
                format!("unknown mode {text:?}: write \"exclusive\", \"shared\" or \"permits 2/5\"")
            }),
        }
    }
}

impl TryFrom<String> for Mode {
    type Error = String;

    fn try_from(text: String) -> Result<Mode, String> {
        text.parse()
    }
}
