//! The suite's end of a taker: a child process that takes orders, and is stopped and killed.
//!
//! Signals go only to the child that this value started, by its id, and only while it has not been waited
//! for.

use std::process::Stdio;
use std::time::Duration;

use leasehold_core::{Claim, Fence, Resource};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::order::Order;
use super::{MARK, STORE_VARIABLE};
use crate::client::{AT_ONCE, HANG, within};
use crate::not_kept::{Checked, NotKept, ensure};
use crate::subject::TakerCommand;

/// A taker that runs. Dropping it kills it.
pub(crate) struct Taker {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Taker {
    /// Starts a taker and waits until it is connected.
    pub(crate) async fn start(command: &TakerCommand) -> Checked<Taker> {
        let mut child = Command::new(&command.program)
            .args(&command.arguments)
            .env(STORE_VARIABLE, &command.store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| NotKept::broken(format!("{command:?} could not be started: {error}")))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(NotKept::broken("a child was started without the pipes that were asked for"));
        };
        let mut taker = Taker { child, orders, answers: BufReader::new(answers).lines() };
        let ready = taker.answer(HANG).await?;
        ensure!(ready == "ready", "a taker began with {ready:?}");
        Ok(taker)
    }

    /// Takes the claim within `wait`, or not.
    pub(crate) async fn take(&mut self, claim: &Claim, wait: Duration) -> Checked<Option<Option<Fence>>> {
        self.begin_to_take(claim, wait).await?;
        self.taken(wait).await
    }

    /// Takes a free lock.
    pub(crate) async fn hold(&mut self, claim: &Claim) -> Checked<Option<Fence>> {
        let taken = self.take(claim, Duration::ZERO).await?;
        taken.ok_or_else(|| {
            NotKept::broken(format!("{claim:?} was refused in another process although it fits"))
        })
    }

    /// Begins to take the claim; [`Taker::taken`] says what came of it.
    pub(crate) async fn begin_to_take(&mut self, claim: &Claim, wait: Duration) -> Checked {
        self.send(&Order::Contend(claim.clone(), wait)).await
    }

    /// Returns the answer to an order to take a claim.
    pub(crate) async fn taken(&mut self, wait: Duration) -> Checked<Option<Option<Fence>>> {
        let answer = self.answer(wait.saturating_add(AT_ONCE)).await?;
        match answer.split_once(' ') {
            None if answer == "busy" => Ok(None),
            Some(("granted", "-")) => Ok(Some(None)),
            Some(("granted", fence)) => match fence.parse() {
                Ok(fence) => Ok(Some(Some(fence))),
                Err(error) => Err(NotKept::broken(format!("{fence:?}: {error}"))),
            },
            _ => Err(NotKept::broken(format!("a taker answered {answer:?} to an order to take a claim"))),
        }
    }

    /// Lets the claim be queued for as long as the process lives.
    pub(crate) async fn enqueue(&mut self, claim: &Claim) -> Checked {
        self.send(&Order::Enqueue(claim.clone())).await?;
        let answer = self.answer(AT_ONCE).await?;
        if answer == "stands" {
            return Ok(());
        }
        Err(NotKept::broken(format!("a taker answered {answer:?} to an order to join the queue")))
    }

    /// Returns the answer to the renewal of the claim.
    pub(crate) async fn renew(&mut self, claim: &Claim) -> Checked<String> {
        self.send(&Order::Renew(claim.clone())).await?;
        self.answer(HANG).await
    }

    /// Returns the answer to the release of the claim.
    pub(crate) async fn release(&mut self, claim: &Claim) -> Checked<String> {
        self.begin_to_release(claim).await?;
        self.released().await
    }

    /// Begins to release the claim; [`Taker::released`] says what came of it.
    pub(crate) async fn begin_to_release(&mut self, claim: &Claim) -> Checked {
        self.send(&Order::Release(claim.clone())).await
    }

    /// Returns the answer to an order to release a claim.
    pub(crate) async fn released(&mut self) -> Checked<String> {
        self.answer(HANG).await
    }

    /// Returns how many hold and how many wait, as the other process sees it.
    pub(crate) async fn look(&mut self, resource: &Resource) -> Checked<(usize, usize)> {
        self.send(&Order::Inspect(resource.clone())).await?;
        let answer = self.answer(HANG).await?;
        let mut counts = answer.strip_prefix("seen ").unwrap_or_default().split(' ').map(str::parse);
        match (counts.next(), counts.next()) {
            (Some(Ok(holders)), Some(Ok(waiting))) => Ok((holders, waiting)),
            _ => Err(NotKept::broken(format!("a taker answered {answer:?} to an order to look"))),
        }
    }

    /// Stops the process, all its threads included, until it is continued.
    ///
    /// The signal has an effect when one thread of the process gets to run and takes it; until then the
    /// others continue. So this waits for the report of the kernel.
    pub(crate) async fn stop(&self) -> Checked {
        self.signal(Signal::STOP)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let stopped = async {
            while !matches!(waitid(WaitId::Pid(self.id()?), options), Ok(Some(_))) {
                tokio::time::sleep(STOP_PAUSE).await;
            }
            Ok(())
        };
        within(HANG, "a process that was stopped", stopped).await?
    }

    /// Continues a stopped process.
    pub(crate) fn resume(&self) -> Checked {
        self.signal(Signal::CONT)
    }

    /// Kills the process and waits until it is gone.
    pub(crate) async fn kill(mut self) -> Checked {
        self.signal(Signal::KILL)?;
        match within(HANG, "a killed process", self.child.wait()).await? {
            Ok(_) => Ok(()),
            Err(error) => Err(NotKept::broken(format!("a killed process cannot be waited for: {error}"))),
        }
    }

    fn id(&self) -> Checked<Pid> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        id.ok_or_else(|| NotKept::broken("a taker ended by itself"))
    }

    fn signal(&self, signal: Signal) -> Checked {
        kill_process(self.id()?, signal)
            .map_err(|error| NotKept::broken(format!("a taker could not be sent {signal:?}: {error}")))
    }

    async fn send(&mut self, order: &Order) -> Checked {
        let line = format!("{order}\n");
        let sent = within(AT_ONCE, "a taker's input", self.orders.write_all(line.as_bytes())).await?;
        sent.map_err(|error| NotKept::broken(format!("a taker takes no orders any more: {error}")))
    }

    async fn answer(&mut self, limit: Duration) -> Checked<String> {
        let read = async {
            loop {
                match self.answers.next_line().await {
                    Ok(Some(line)) => {
                        if let Some(answer) = line.strip_prefix(MARK) {
                            return in_time(answer);
                        }
                    }
                    Ok(None) => return Err(NotKept::broken("a taker ended by itself; its stderr says why")),
                    Err(error) => return Err(NotKept::broken(format!("a taker cannot be heard: {error}"))),
                }
            }
        };
        within(limit, "a taker", read).await?
    }
}

/// Returns the answer, unless it says that something came too late: which is not a breach here either.
fn in_time(answer: &str) -> Checked<String> {
    if ["failed Late(", "failed Delayed("].iter().any(|late| answer.starts_with(late)) {
        return Err(NotKept::late(format!("a taker answered {answer:?}")));
    }
    Ok(answer.to_owned())
}

/// The pause between looks whether a process has stopped.
const STOP_PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taker::failed;

    #[test]
    fn what_came_too_late_in_a_taker_is_late_here() {
        for late in [NotKept::late("no answer"), NotKept::Delayed("a slow store".to_owned())] {
            let answer = failed(&late);
            assert!(
                matches!(in_time(&answer), Err(NotKept::Late(why)) if why.contains(&answer[..12])),
                "{answer}"
            );
        }
        for answer in ["granted -", "busy", &failed(&NotKept::broken("Late(it was not)"))] {
            assert_eq!(in_time(answer).ok().as_deref(), Some(answer));
        }
    }
}
