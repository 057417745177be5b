//! One of several processes that hand a lock to each other: waits, holds for a moment, releases, again
//! and again.
//!
//! It is this program, started by itself. When it ends it prints a line for each hold: when it was
//! granted and when the release began, in nanoseconds of the clock that all processes share.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use leasehold::Client;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use rustix::fs::{FlockOperation, flock};

use crate::Outcome;
use crate::effort::now_nanos;

/// The work of a waiter, and its times.
#[derive(Debug, Args)]
pub(crate) struct Waiter {
    /// By what means
    #[arg(long, value_enum)]
    pub(crate) means: Means,
    /// A URL, or the path of a file
    #[arg(long)]
    pub(crate) at: String,
    /// When to begin, by the shared clock
    #[arg(long)]
    pub(crate) from: u64,
    /// When not to begin anew
    #[arg(long)]
    pub(crate) until: u64,
    /// The time to hold, in microseconds
    #[arg(long)]
    pub(crate) hold: u64,
}

/// By what means the processes exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Means {
    /// A mutex of leasehold, at a URL
    Client,
    /// A token in a list of Redis: the client that takes it holds the lock, and pushes it back. The
    /// least that a server can do for this.
    Token,
    /// A file and the kernel
    Flock,
}

/// One hold, in nanoseconds of the shared clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hold {
    pub(crate) granted: u64,
    pub(crate) released: u64,
}

impl Hold {
    /// Reads what a waiter printed.
    pub(crate) fn read_all(text: &str) -> Outcome<Vec<Hold>> {
        let read = |line: &str| {
            let (granted, released) =
                line.split_once(' ').ok_or("a waiter printed a line that is not a hold")?;
            Ok(Hold { granted: granted.parse()?, released: released.parse()? })
        };
        text.lines().map(read).collect()
    }
}

impl Waiter {
    /// Runs the whole life of such a process.
    pub(crate) fn run(self) -> Outcome<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let holds = runtime.block_on(async {
            match self.means {
                Means::Client => self.by_leasehold().await,
                Means::Token => self.by_token().await,
                Means::Flock => self.by_flock().await,
            }
        })?;
        for Hold { granted, released } in holds {
            println!("{granted} {released}");
        }
        Ok(())
    }

    async fn by_leasehold(&self) -> Outcome<Vec<Hold>> {
        let locks = Client::open(&self.at).await?;
        let mutex = locks.mutex(NAME);
        let mut holds = Vec::new();
        self.begin().await;
        while now_nanos() < self.until {
            let guard = mutex.lock().await?;
            holds.push(self.hold().await);
            guard.release().await?;
        }
        Ok(holds)
    }

    async fn by_token(&self) -> Outcome<Vec<Hold>> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(self.at.as_str())?;
        let mut connection: MultiplexedConnection =
            client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut holds = Vec::new();
        self.begin().await;
        while now_nanos() < self.until {
            let taken: Option<(String, String)> =
                redis::cmd("BLPOP").arg(NAME).arg(TOKEN_LIMIT).query_async(&mut connection).await?;
            let (_, token) = taken.ok_or("the token was lost")?;
            holds.push(self.hold().await);
            redis::cmd("RPUSH").arg(NAME).arg(token).exec_async(&mut connection).await?;
        }
        Ok(holds)
    }

    /// Repeats with `flock`. The thread has nothing else to do, so it may block.
    async fn by_flock(&self) -> Outcome<Vec<Hold>> {
        let mut holds = Vec::new();
        self.begin().await;
        while now_nanos() < self.until {
            let file = File::options().create(true).append(true).open(Path::new(&self.at))?;
            flock(&file, FlockOperation::LockExclusive)?;
            holds.push(self.hold().await);
            drop(file);
        }
        Ok(holds)
    }

    async fn begin(&self) {
        let left = self.from.saturating_sub(now_nanos());
        tokio::time::sleep(Duration::from_nanos(left)).await;
    }

    /// Holds for a while, so that all others are in line again.
    async fn hold(&self) -> Hold {
        let granted = now_nanos();
        tokio::time::sleep(Duration::from_micros(self.hold)).await;
        Hold { granted, released: now_nanos() }
    }
}

/// The lock, and the list with the token.
pub(crate) const NAME: &str = "handed-over";
/// Seconds after which a token counts as lost.
const TOKEN_LIMIT: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_a_waiter_is_read() {
        let holds = Hold::read_all("1 5\n7 9\n").unwrap();
        assert_eq!(holds, [Hold { granted: 1, released: 5 }, Hold { granted: 7, released: 9 }]);
        assert!(Hold::read_all("nonsense").is_err());
    }
}
