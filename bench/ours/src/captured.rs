//! The commands that leasehold really sends, captured on the server, so that others can send the same.
//!
//! No internals of the backend are known here: the server's own MONITOR shows the arguments of each
//! command. The measured limit of the server therefore follows every change of the scripts and of their
//! arguments.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold::Client;
use leasehold_testkit::RedisServer;
use redis::Cmd;

use crate::Outcome;

/// The two commands of one uncontended cycle.
#[derive(Clone, Debug)]
pub(crate) struct CapturedCycle {
    pub(crate) acquire: Template,
    pub(crate) release: Template,
    /// Commands that a cycle sent, over many cycles: everything, not only these two.
    pub(crate) commands_per_cycle: f64,
}

/// One command, in which the lock's name and the claim's id can be replaced.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    args: Vec<String>,
    id: String,
}

impl CapturedCycle {
    /// Captures some cycles of one lock.
    pub(crate) async fn on(url: &str) -> Outcome<CapturedCycle> {
        let locks = Client::open(url).await?;
        let mutex = locks.mutex(NAME);
        // The first cycle teaches the server the scripts.
        mutex.lock().await?.release().await?;
        let commands = capture(url, async {
            for _ in 0..CYCLES {
                mutex.lock().await?.release().await?;
            }
            Ok(())
        });
        let commands = commands.await?;
        let commands_per_cycle = commands.len() as f64 / f64::from(CYCLES);
        let mut commands = commands.into_iter();
        let (Some(acquire), Some(release)) = (commands.next(), commands.next()) else {
            return Err("nothing was overheard of an acquire and its release".into());
        };
        Ok(CapturedCycle {
            acquire: Template::of(acquire)?,
            release: Template::of(release)?,
            commands_per_cycle,
        })
    }
}

impl Template {
    /// Captures the renewal of a single lease, and makes it one that extends a lease to `to`.
    pub(crate) async fn of_renewal(server: &RedisServer, to: Duration) -> Outcome<Template> {
        let locks = Client::open(&server.url()).await?;
        // Short, so that it is soon renewed, and long enough for a busy machine.
        let ttl = Duration::from_secs(3);
        let guard = locks.mutex(NAME).ttl(ttl).lock().await?;
        // The first renewal teaches the server the script.
        tokio::time::sleep(ttl / 2).await;
        let url = server.url();
        let commands = capture(&url, async {
            tokio::time::sleep(ttl * 2 / 3).await;
            Ok(())
        });
        let mut renewal = commands.await?.pop().ok_or("nothing was overheard of a renewal")?;
        // The renewal is known, and the lock may have been lost meanwhile.
        drop(guard.release().await);
        let written = ttl.as_millis().to_string();
        let place = renewal.iter_mut().find(|argument| **argument == written);
        *place.ok_or("the ttl was not found in what was overheard of a renewal")? =
            to.as_millis().to_string();
        Template::of(renewal)
    }

    fn of(args: Vec<String>) -> Outcome<Template> {
        let is_id = |part: &&str| part.len() == 32 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = args.iter().filter_map(|argument| argument.split(':').next()).find(is_id);
        let id = id.ok_or("no claim's id was found in what was overheard")?.to_owned();
        if !args.iter().any(|argument| argument.contains(NAME)) {
            return Err(format!("the lock's name was not found in {args:?}").into());
        }
        Ok(Template { args, id })
    }

    /// Returns the arguments with another name and another id.
    pub(crate) fn args(&self, name: &str, id: &str) -> Vec<String> {
        self.args.iter().map(|argument| argument.replace(NAME, name).replace(&self.id, id)).collect()
    }

    /// As [`Template::args`], for the client library.
    pub(crate) fn command(&self, name: &str, id: &str) -> Cmd {
        let mut command = Cmd::new();
        for argument in self.args(name, id) {
            command.arg(argument);
        }
        command
    }

    /// As [`Template::args`], as bytes for a socket.
    pub(crate) fn bytes(&self, name: &str, id: &str) -> Vec<u8> {
        self.command(name, id).get_packed_command()
    }

    /// Returns the keys that it names.
    pub(crate) fn keys(&self, name: &str) -> Outcome<Vec<String>> {
        let args = self.args(name, &self.id);
        let count: usize = args.get(2).ok_or("the captured command is not a script")?.parse()?;
        Ok(args.into_iter().skip(3).take(count).collect())
    }
}

const NAME: &str = "overheard-lock";
const CYCLES: u16 = 50;
/// The message that ends the listening: each message that was sent before it arrives before it.
const MARK: &str = "overheard-end";
const LIMIT: Duration = Duration::from_secs(5);

/// Returns the commands that clients sent while `work` was done; the calls of scripts are left out.
async fn capture(url: &str, work: impl Future<Output = Outcome<()>>) -> Outcome<Vec<Vec<String>>> {
    let client = redis::Client::open(url)?;
    let mut own = client.get_multiplexed_async_connection().await?;
    let mut monitor = client.get_async_monitor().await?;
    let mut lines = monitor.on_message::<String>();
    work.await?;
    redis::cmd("ECHO").arg(MARK).exec_async(&mut own).await?;
    let mut commands = Vec::new();
    loop {
        let line = tokio::time::timeout(LIMIT, lines.next()).await?.ok_or("MONITOR ended")?;
        let Some((source, args)) = line.split_once("] ") else { continue };
        if source.ends_with(" lua") {
            continue;
        }
        let args = unquoted(args);
        if args.last().is_some_and(|argument| argument == MARK) {
            return Ok(commands);
        }
        commands.push(args);
    }
}

/// Reads arguments as MONITOR quotes them.
fn unquoted(line: &str) -> Vec<String> {
    let mut args = Vec::new();
    let mut letters = line.chars();
    while letters.by_ref().any(|letter| letter == '"') {
        let mut argument = String::new();
        while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
            match letter {
                '\\' => argument.extend(letters.next().map(|escaped| match escaped {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    plain => plain,
                })),
                plain => argument.push(plain),
            }
        }
        args.push(argument);
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_arguments_are_read() {
        assert_eq!(unquoted(r#""EVALSHA" "a b" "" "q\"\\n\n""#), ["EVALSHA", "a b", "", "q\"\\n\n"]);
    }

    #[test]
    fn name_and_id_are_replaced() {
        let id = "0123456789abcdef0123456789abcdef";
        let sent = ["EVALSHA", "sha", "1", "{lh:overheard-lock}:held", &format!("{id}:1:1")];
        let template = Template::of(sent.iter().map(|argument| (*argument).to_owned()).collect()).unwrap();
        assert_eq!(template.args("x", "me"), ["EVALSHA", "sha", "1", "{lh:x}:held", "me:1:1"]);
        assert_eq!(template.keys("x").unwrap(), ["{lh:x}:held"]);
        assert!(Template::of(vec!["PING".to_owned()]).is_err());
    }

    #[tokio::test]
    async fn captured_commands_can_be_sent_again() {
        let Some(server) = RedisServer::start_or_skip().await else { return };
        let captured = CapturedCycle::on(&server.url()).await.unwrap();
        assert_eq!(captured.commands_per_cycle, 2.0);
        let id = "00000000000000000000000000000001";
        server.command(&captured.acquire.args("other", id)).await.unwrap();
        let locks = Client::open(&server.url()).await.unwrap();
        assert!(locks.mutex("other").try_lock().await.unwrap().is_none());
        let freed = server.command(&captured.release.args("other", id)).await.unwrap();
        assert_eq!(freed, leasehold_testkit::Reply::Int(1));
        let renewal = Template::of_renewal(&server, Duration::from_secs(60)).await.unwrap();
        let gone = server.command(&renewal.args("other", id)).await.unwrap();
        assert_eq!(gone, leasehold_testkit::Reply::Many(vec![leasehold_testkit::Reply::Int(0)]));
    }
}
