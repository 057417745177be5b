//! Counts of what clients did to a server, without what the kit did.
//!
//! Redis counts per command, not per client, so the kit counts its own commands and takes them away.

use std::collections::BTreeMap;

use crate::error::Error;

/// The numbers of commands and connections of clients that a server has seen since it started.
///
/// A command that a script calls counts under its own name, beside the `evalsha` that called it. Commands
/// that the server rejects before it runs them (no permission, wrong number of arguments) do not count.
/// Commands through [`RedisServer::command`](super::RedisServer::command) are left out, with two
/// exceptions: a rejected one is subtracted although it never counted, and the calls of a script count.
///
/// ```
/// # use leasehold_testkit::RedisServer;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Some(server) = RedisServer::start_or_skip().await else { return Ok(()) };
/// let before = server.counts().await?;
/// // … what is tested …
/// let used = server.counts().await?.since(&before);
/// assert!(used.of("evalsha") <= 2);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// Calls by command, in lower case, subcommands as `config|get`; commands that were not called are
    /// absent.
    pub commands: BTreeMap<String, u64>,
    /// Connections that are open now.
    pub connections: u64,
    /// Connections that were accepted.
    pub accepted: u64,
}

impl Counts {
    /// Returns all commands together.
    pub fn total(&self) -> u64 {
        self.commands.values().sum()
    }

    /// Calls of one command with all its subcommands, or of one subcommand (`config|get`), in lower case.
    pub fn of(&self, command: &str) -> u64 {
        let matches = |name: &str| name == command || name.split('|').next() == Some(command);
        self.commands.iter().filter(|(name, _)| matches(name)).map(|(_, calls)| calls).sum()
    }

    /// Returns what came after `earlier` was read. The open connections stay as they are.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |name: &str| earlier.commands.get(name).copied().unwrap_or(0);
        let commands =
            self.commands.iter().map(|(name, calls)| (name.clone(), calls.saturating_sub(before(name))));
        Self {
            commands: commands.filter(|(_, calls)| *calls > 0).collect(),
            connections: self.connections,
            accepted: self.accepted.saturating_sub(earlier.accepted),
        }
    }

    /// Reads the answer to `INFO everything` and takes the kit's part away.
    pub(super) fn read(info: &str, own: &Tally) -> Result<Self, Error> {
        let mut counts = Self::default();
        let (mut open, mut accepted) = (None, None);
        for (field, value) in info.lines().filter_map(|line| line.split_once(':')) {
            if let Some(command) = field.strip_prefix("cmdstat_") {
                let calls = value.split(',').find_map(|part| part.strip_prefix("calls="));
                counts.commands.insert(command.to_owned(), number(field, calls)?);
            } else if field == "connected_clients" {
                open = Some(number(field, Some(value))?);
            } else if field == "total_connections_received" {
                accepted = Some(number(field, Some(value))?);
            }
        }
        for ((command, subcommand), times) in &own.commands {
            let whole = format!("{command}|{subcommand}");
            let name = if counts.commands.contains_key(&whole) { &whole } else { command };
            if let Some(calls) = counts.commands.get_mut(name) {
                *calls = calls.saturating_sub(*times);
            }
        }
        counts.commands.retain(|_, calls| *calls > 0);
        let absent = |field: &str| Error::failed(format!("redis does not report {field} in INFO"));
        counts.connections = open.ok_or_else(|| absent("connected_clients"))?.saturating_sub(1);
        let accepted: u64 = accepted.ok_or_else(|| absent("total_connections_received"))?;
        counts.accepted = accepted.saturating_sub(own.connections);
        Ok(counts)
    }
}

/// The kit's own part since the server started.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    /// The counts by the first two words, because only the server knows whether the second is a subcommand.
    commands: BTreeMap<(String, String), u64>,
    connections: u64,
}

impl Tally {
    pub(super) fn add_command(&mut self, args: &[&[u8]]) {
        *self.commands.entry(Self::key(args)).or_default() += 1;
    }

    pub(super) fn add_connection(&mut self) {
        self.connections += 1;
    }

    pub(super) fn forget_last_info(&mut self) {
        if let Some(times) = self.commands.get_mut(&Self::key(&[b"INFO", b"everything"])) {
            *times = times.saturating_sub(1);
        }
    }

    fn key(args: &[&[u8]]) -> (String, String) {
        let arg = |at: usize| String::from_utf8_lossy(args.get(at).unwrap_or(&&b""[..])).to_lowercase();
        (arg(0), arg(1))
    }
}

fn number(field: &str, text: Option<&str>) -> Result<u64, Error> {
    let parsed = text.and_then(|text| text.trim().parse().ok());
    parsed.ok_or_else(|| Error::failed(format!("redis reported no number in INFO field {field}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Clients\r\nconnected_clients:3\r\n# Stats\r\ntotal_connections_received:9\r\n\
        # Commandstats\r\ncmdstat_ping:calls=4,usec=1\r\ncmdstat_config|get:calls=2,usec=1\r\n\
        cmdstat_config|set:calls=1,usec=1\r\ncmdstat_info:calls=1,usec=1\r\n";

    fn own() -> Tally {
        let mut own = Tally::default();
        own.add_connection();
        for args in [&[&b"PING"[..]][..], &[b"CONFIG", b"GET", b"save"], &[b"INFO", b"everything"]] {
            own.add_command(args);
        }
        own
    }

    #[test]
    fn the_kits_part_is_taken_away() {
        let counts = Counts::read(INFO, &own()).unwrap();
        assert_eq!((counts.of("ping"), counts.of("config"), counts.of("config|get")), (3, 2, 1));
        assert_eq!((counts.total(), counts.connections, counts.accepted), (5, 2, 8));
        assert_eq!(counts.since(&counts).total(), 0);
    }

    #[test]
    fn an_answer_without_the_fields_is_an_error() {
        let error = Counts::read("connected_clients:3", &Tally::default()).unwrap_err();
        assert_eq!(error.to_string(), "redis does not report total_connections_received in INFO");
        let error = Counts::read("cmdstat_ping:usec=1", &Tally::default()).unwrap_err();
        assert_eq!(error.to_string(), "redis reported no number in INFO field cmdstat_ping");
    }
}
