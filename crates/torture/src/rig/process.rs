//! One worker as the rig sees it: a process, the thread that reads its pipe, and the signals to it.
//!
//! Ground rules: a fault is recorded before it begins and after it has ended, so that its span is never too short. A
//! death is recorded after everything that the process has said, with its own time.
//! Signals go to the process that this file has started and not yet waited for, and to no other.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold_history::Stage;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;

use crate::clock::{Change, now};
use crate::error::RigError;
use crate::recorder::{Recorder, Spawn};
use crate::wire::{Assignment, Done, Message, Order};

/// The order to start a worker.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) assignment: Assignment,
}

/// A worker: running, paused or killed.
#[derive(Debug)]
pub(super) struct Worker {
    number: usize,
    spawn: Spawn,
    process: Option<Child>,
    /// Closed when the worker has to end.
    orders: Option<ChildStdin>,
    is_paused: bool,
    was_asked: bool,
    /// Its answers to orders about its clocks.
    done: Receiver<Done>,
    /// The time at which the pipe of its events ended, when it has.
    over: Receiver<u64>,
    ended_at: Option<u64>,
    words: Arc<Mutex<Vec<String>>>,
    /// The time of its start, and its answer, until somebody waits for it.
    starting: Option<(Instant, Ready)>,
}

/// The answer of a worker that it has opened the store, or cannot.
type Ready = oneshot::Receiver<Result<(), String>>;

/// A command to start, and where to send the process.
type StartOrder = (Command, Sender<std::io::Result<Child>>);

/// The thread that starts workers. The kernel kills a worker when the thread that started it ends, so that thread
/// lives as long as the rig.
#[derive(Debug)]
pub(super) struct Spawner {
    orders: Sender<StartOrder>,
}

impl Spawner {
    pub(super) fn start() -> std::io::Result<Spawner> {
        let (orders, received): (_, Receiver<StartOrder>) = channel();
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for (mut command, answer) in received {
                let _ = answer.send(command.spawn());
            }
        })?;
        Ok(Spawner { orders })
    }

    /// Starts a worker.
    pub(super) fn spawn(&self, start: Start, recorder: Arc<Recorder>) -> Result<Worker, RigError> {
        let assignment = start.assignment;
        let (number, spawn) = (assignment.worker, assignment.spawn);
        let failed = |what: String| RigError::Worker { worker: number, what };
        let (answer, answered) = channel();
        let gone = || failed("the thread that starts workers has ended".to_owned());
        self.orders.send((command(&assignment), answer)).map_err(|_| gone())?;
        let started = answered.recv().map_err(|_| gone())?;
        let path = &assignment.plan.program.path;
        let mut child =
            started.map_err(|error| failed(format!("cannot be started ({}): {error}", path.display())))?;
        let mut orders = child.stdin.take();
        let mut line = serde_json::to_vec(&assignment).map_err(|error| failed(error.to_string()))?;
        line.push(b'\n');
        if let Some(orders) = &mut orders {
            // A worker that has ended already is noticed by the end of its output.
            let _ = orders.write_all(&line);
        }
        let words = Arc::new(Mutex::new(Vec::new()));
        if let Some(stderr) = child.stderr.take() {
            let words = words.clone();
            std::thread::Builder::new()
                .name("stderr".into())
                .spawn(move || keep_all(BufReader::new(stderr), &words))?;
        }
        let (ready, is_ready) = oneshot::channel();
        let (ended, over) = channel();
        let (answers, done) = channel();
        if let Some(stdout) = child.stdout.take() {
            let (words, is_patient) = (words.clone(), assignment.is_patient);
            std::thread::Builder::new().name("events".into()).spawn(move || {
                let retried = is_patient.then_some(&*words);
                read(BufReader::new(stdout), spawn, &recorder, (ready, answers), retried);
                let _ = ended.send(now());
            })?;
        }
        let process = Some(child);
        let (is_paused, was_asked, ended_at) = (false, false, None);
        let starting = Some((Instant::now(), is_ready));
        Ok(Worker {
            number,
            spawn,
            process,
            orders,
            is_paused,
            was_asked,
            done,
            over,
            ended_at,
            words,
            starting,
        })
    }
}

fn command(assignment: &Assignment) -> Command {
    let plan = &assignment.plan;
    let own = |of: &usize| *of == assignment.worker;
    let mut words = plan
        .wrappers
        .iter()
        .filter(|(of, _)| own(of))
        .flat_map(|(_, words)| words.clone())
        .chain([plan.program.path.clone().into_os_string()])
        .chain(plan.program.arguments.iter().cloned());
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command.envs(plan.variables.iter().filter(|(of, ..)| own(of)).map(|(_, name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C at a terminal is for the rig, which then ends its workers in order.
    command.process_group(0);
    command
}

/// Reads the messages of a worker, until it has ended. The failures of one that tries again to open the store go to
/// `retried`.
fn read(
    lines: impl BufRead,
    spawn: Spawn,
    recorder: &Recorder,
    (ready, answers): (oneshot::Sender<Result<(), String>>, Sender<Done>),
    retried: Option<&Mutex<Vec<String>>>,
) {
    let mut ready = Some(ready);
    for line in lines.lines() {
        // A line that is cut off is the last one of a killed worker.
        let Ok(Ok(message)) = line.map(|line| serde_json::from_str::<Message>(&line)) else { return };
        let answer = match message {
            Message::Event(event) => {
                recorder.reported(spawn, *event);
                continue;
            }
            Message::Done(done) => {
                let _ = answers.send(done);
                continue;
            }
            Message::Ready(_) => Ok(()),
            Message::Failed(error) => match retried {
                Some(words) => {
                    keep(words, error);
                    continue;
                }
                None => Err(error),
            },
        };
        if let Some(ready) = ready.take() {
            let _ = ready.send(answer);
        }
    }
}

/// Keeps the last lines of a stream.
fn keep_all(lines: impl BufRead, words: &Mutex<Vec<String>>) {
    lines.lines().map_while(Result::ok).for_each(|line| keep(words, line));
}

/// Keeps a line, and the last ones before it.
fn keep(words: &Mutex<Vec<String>>, line: String) {
    let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
    if words.last() == Some(&line) {
        return;
    }
    if words.len() >= LAST_WORDS {
        words.remove(0);
    }
    words.push(line);
}

impl Worker {
    pub(super) fn spawn(&self) -> Spawn {
        self.spawn
    }

    pub(super) fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Returns what the worker said last on its standard error, as the end of a sentence.
    pub(super) fn last_words(&self) -> String {
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.is_empty() { String::new() } else { format!(": {}", words.join("; ")) }
    }

    /// Waits until the worker has opened the store, for a time from its start. Returns why it has not.
    pub(super) async fn opened(&mut self) -> Result<(), String> {
        let Some((begun, ready)) = self.starting.take() else { return Ok(()) };
        match tokio::time::timeout(TO_OPEN.saturating_sub(begun.elapsed()), ready).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(format!("cannot open the store: {error}")),
            Ok(Err(_)) => Err(format!("ended at its start{}", self.last_words())),
            Err(_) => Err(format!("did not open the store within {TO_OPEN:?}{}", self.last_words())),
        }
    }

    /// Records that the worker, which took another one's place, has not opened the store.
    pub(super) async fn notice_start(&mut self, recorder: &Recorder) {
        if self.process.is_some()
            && let Err(why) = self.opened().await
        {
            let label = format!("{}, which {why}", self.label(UNSTARTED));
            recorder.fault(&label, Stage::Info, Some(self.spawn));
        }
    }

    fn label(&self, what: &str) -> String {
        format!("{what} worker {}", self.number)
    }

    fn signal(&self, signal: Signal) -> Result<(), RigError> {
        let failed = |what: String| RigError::Worker { worker: self.number, what };
        let Some(process) = &self.process else { return Err(failed("is not running".to_owned())) };
        kill_process(Pid::from_child(process), signal)
            .map_err(|error| failed(format!("takes no signal: {error}")))
    }

    pub(super) fn pause(&mut self, recorder: &Recorder) -> Result<(), RigError> {
        if self.is_paused {
            return Err(RigError::Worker { worker: self.number, what: "is paused already".to_owned() });
        }
        self.notice_end(recorder);
        recorder.fault(&self.label("pause"), Stage::Invoke, Some(self.spawn));
        let paused = self.signal(Signal::STOP);
        if paused.is_err() {
            recorder.fault(&self.label("pause"), Stage::Ok, Some(self.spawn));
        }
        self.is_paused = paused.is_ok();
        paused
    }

    pub(super) fn resume(&mut self, recorder: &Recorder) -> Result<(), RigError> {
        if !self.is_paused {
            return Err(RigError::Worker { worker: self.number, what: "is not paused".to_owned() });
        }
        self.is_paused = false;
        let resumed = self.signal(Signal::CONT);
        recorder.fault(&self.label("pause"), Stage::Ok, Some(self.spawn));
        resumed
    }

    pub(super) fn resume_if_paused(&mut self, recorder: &Recorder) {
        if self.is_paused {
            let _ = self.resume(recorder);
        }
    }

    /// Changes the clock of the worker, and returns when it has done that.
    pub(super) fn change_clock(&mut self, change: Change) -> Result<(), RigError> {
        match self.order(Order::Change(change))? {
            Some(Done::Changed(done)) if done == change => Ok(()),
            _ => Err(self.failed("does not change its clock")),
        }
    }

    /// Returns what the wall clock of the worker shows.
    pub(super) fn wall_clock(&mut self) -> Result<Duration, RigError> {
        match self.order(Order::ReadTime)? {
            Some(Done::Time(time)) => Ok(time),
            _ => Err(self.failed("does not say what its wall clock shows")),
        }
    }

    fn failed(&self, what: impl Into<String>) -> RigError {
        RigError::Worker { worker: self.number, what: what.into() }
    }

    /// Gives the worker an order, and returns its answer, if one comes in time.
    fn order(&mut self, order: Order) -> Result<Option<Done>, RigError> {
        let failed = |what: String| RigError::Worker { worker: self.number, what };
        let Some(orders) = &mut self.orders else { return Err(failed("is not running".to_owned())) };
        let mut line = serde_json::to_vec(&order).map_err(|error| failed(error.to_string()))?;
        line.push(b'\n');
        orders.write_all(&line).map_err(|error| failed(format!("takes no order: {error}")))?;
        Ok(self.done.recv_timeout(TO_OBEY).ok())
    }

    pub(super) fn kill(&mut self, recorder: &Recorder) -> Result<(), RigError> {
        self.notice_end(recorder);
        let Some(mut process) = self.process.take() else {
            return Err(RigError::Worker { worker: self.number, what: "is not running".to_owned() });
        };
        // Just before it could notice.
        let at = now();
        let killed = process.kill().and_then(|()| process.wait());
        self.orders = None;
        self.read_to_the_end();
        recorder.fault_at(&self.label("kill"), Stage::Info, Some(self.spawn), Some(at));
        if self.is_paused {
            self.is_paused = false;
            recorder.fault(&self.label("pause"), Stage::Ok, Some(self.spawn));
        }
        killed.map(drop).map_err(RigError::from)
    }

    /// Records that the worker has ended by itself, if it has.
    fn notice_end(&mut self, recorder: &Recorder) {
        if self.has_ended() && self.process.take().is_some() && !self.was_asked {
            self.read_to_the_end();
            let label = format!("{}{}", self.label("exit of"), self.last_words());
            // It may have ended long before somebody looks.
            recorder.fault_at(&label, Stage::Info, Some(self.spawn), self.ended_at);
        }
    }

    /// Waits until all messages of a process that has ended were read. A process that it has started itself, such as
    /// one of a wrapper, may keep the pipe open, but not for ever.
    fn read_to_the_end(&mut self) {
        if self.ended_at.is_none() {
            self.ended_at = self.over.recv_timeout(TO_READ).ok();
        }
    }

    /// Asks the worker to finish what it does, and to end.
    pub(super) fn ask_to_end(&mut self) {
        self.was_asked |= !self.has_ended();
        self.orders = None;
    }

    pub(super) fn has_ended(&mut self) -> bool {
        match &mut self.process {
            Some(process) => matches!(process.try_wait(), Ok(Some(_)) | Err(_)),
            None => true,
        }
    }

    /// Ends the worker: kills it if it did not end when it was asked to. Waits until all its messages were read.
    pub(super) fn end(&mut self, recorder: &Recorder) {
        let failed = match self.process.as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => !status.success(),
            None => false,
            _ => {
                // Not a kill of the plan: what it had open should have ended, and counts as if it never did.
                recorder.fault(&self.label(HUNG), Stage::Info, Some(self.spawn));
                if let Some(mut process) = self.process.take() {
                    let _ = process.kill().and_then(|()| process.wait());
                }
                false
            }
        };
        if failed {
            self.was_asked = false;
        }
        self.notice_end(recorder);
        self.read_to_the_end();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The label of a worker that did not end when it was asked to.
pub(crate) const HUNG: &str = "no end of";
/// The label of a worker that took the place of another one, and did not open the store.
pub(crate) const UNSTARTED: &str = "no start of";
const TO_OPEN: Duration = Duration::from_secs(30);
const LAST_WORDS: usize = 5;
/// Longer than a worker on a busy machine needs to read a line.
const TO_OBEY: Duration = Duration::from_secs(30);
const TO_READ: Duration = Duration::from_secs(10);
