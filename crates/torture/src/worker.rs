//! A worker: the process that takes the locks, and tells over its standard output what it sees.

use std::process::ExitCode;

/// Runs a worker: reads its plan from the standard input, and ends when that is closed.
///
/// A program that starts a [`Rig`](crate::Rig) calls this if it is started with the arguments of
/// [`Program`](crate::Program), before it has threads and a runtime of its own.
pub fn run() -> ExitCode {
    ExitCode::SUCCESS
}
