//! A whole [`Backend`](leasehold_core::Backend) over any store that can read a small value and change it if
//! no other client did: a row, an item, a record.
//!
//! One cell per resource holds the [`Ledger`](leasehold_core::Ledger) as text. A client reads the cell,
//! lets the ledger decide, and writes the result back on the condition that the cell is still what was
//! read. The store decides only which of two writers was first; the rule of admission, the queue, retries,
//! renewal in batches, waiting and expiry are written here, once.
//!
//! # What a store brings
//!
//! [`CellStore`]: read many cells, and write many, each on a [`WriteCondition`]. On [`WriteCondition::Free`] a value is
//! put where no claim lives, in one step, so that an uncontended acquire is one round trip. A release is one
//! round trip too: a client that holds a cell alone remembers its version, and writes without reading. Where
//! this client was the last to write, what several of its tasks want at once goes to the store in one commit.
//! A store that can notify clients passes the calls to the [`Notifier`]; all others are polled.
//!
//! # Whose time
//!
//! [`ClockSource::Store`]: the store says with every read how old the cell is by its own clock, taken when
//! the statement runs; everything in a ledger is counted from the cell's origin, which the store stamps
//! itself. No client's clock is ever compared with another's.
//!
//! [`ClockSource::Observer`]: for stores without a clock that can be used. A ledger holds spans, not dates.
//! Each observer counts a span from when it read it: a claim that gave no sign of life for that long is dead.
//! Each renewal, each repeated grant and each adoption counts as a sign in the ledger, so that no client has
//! to have seen the claim before for its sign to count. A writer of a cell writes what is left of each span for
//! it, so that what many clients see of a dead claim adds up. A newcomer waits for up to one span more than the
//! others; no step of any clock frees a claim early.
//!
//! # ShedLock's table
//!
//! A row of ShedLock has no space for a ledger, and others write it by rules of their own. [`ShedBackend`]
//! is a backend of its own over the four statements that a [`ShedTable`] brings.
//!
//! # Registers
//!
//! A store that can keep a second set of cells has registers too, by [`CellRegisters`].
//!
//! # Ground rules
//!
//! Nothing here knows SQL or a protocol. All waits and retries are bounded. What may have happened is
//! reported as such and settled by repeating the request with the same claim: its id is in the ledger.

mod backend;
mod cells;
mod compat;
mod diagnose;
#[cfg(feature = "laws")]
pub mod laws;
mod list;
mod state;
mod wait;

pub use backend::CellBackend;
pub use backend::registers::CellRegisters;
pub use backend::sweep::SweepReport;
pub use cells::{
    Call, Cell, CellStore, ClockSource, Found, Locked, Put, SentWrite, Write, WriteAnswer, WriteCondition,
    WriteOutcome,
};
pub use compat::shedlock::{
    End, Row, RowRequest, ShedBackend, ShedTable, Taken, Widths, shed_profile, writer_clocks_finding,
};
pub use diagnose::server_clock_finding;
pub use wait::notifier::{Notifier, address};
pub use wait::polling::pause;
pub use wait::timing::{BATCH_MAX, MAX_TTL, MIN_TTL, PLACE_TTL, before_retry, check};
