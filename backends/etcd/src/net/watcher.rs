//! The one stream of watches of a client.
//!
//! Ground rules: a watch reports that something may have changed, once, and never what: the waiter that is
//! woken looks for itself. So every failure of a watch (compacted, cancelled) is answered by waking. A
//! watch begins at the revision behind the look that it follows, also on a new stream, so nothing is
//! missed in between. Thousands of watches share the stream.
//!
//! A server whose own revision is lower than the one that a watch follows has nothing to report for as long as
//! that is so. It lags behind, or the cluster was wiped or restored from a backup. The look of the waiter shows
//! which, so it is woken after a pause; pauses double for as long as this lasts.
//!
//! Nothing is asked of a stream on which nothing happens: the connection has its own keep-alive, and a
//! server need not answer a request for progress while a watch begins behind its present revision. Only
//! when a request on the same connection was not answered is the server probed: with a watch that
//! receives no events, which every server confirms. A stream whose probe is not answered is opened anew
//! elsewhere, after pauses that double.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold_backend::random;
use leasehold_core::{Backoff, Effect, Failure, FailureKind};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tonic::Streaming;

use crate::net::cluster::{Chosen, Cluster};
use crate::net::error::{Advice, judge};
use crate::net::member::Connection;
use crate::net::outage::MAX_PAUSE;
use crate::protocol::proto::{
    WatchCancelRequest, WatchCreateRequest, WatchOrder, WatchRequest, WatchResponse,
};
use crate::protocol::txn::Span;

/// The client's end of the stream.
#[derive(Debug)]
pub(crate) struct Watcher {
    commands: mpsc::UnboundedSender<Command>,
    last: AtomicI64,
}

/// The keys that are to be watched.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// The end of one key.
    Gone(Vec<u8>),
    /// Any change in a range.
    Any(Span),
}

/// Some watches with one wakeup. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Watch {
    numbers: Vec<i64>,
    wakeup: Arc<Wakeup>,
    commands: mpsc::UnboundedSender<Command>,
}

/// The wakeup of one waiter.
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    notify: Notify,
    refused: Mutex<Option<Failure>>,
}

/// A command to the task. Each watch causes two of them, so that waiters bound the queue.
#[derive(Debug)]
enum Command {
    Watch(i64, Watched),
    Forget(Vec<i64>),
}

#[derive(Debug)]
struct Watched {
    target: Target,
    from: i64,
    wakeup: Arc<Wakeup>,
    created: bool,
    /// The number of its refusals in a row, which tokens that had run out may have caused.
    refusals: u32,
}

impl Watched {
    fn new(target: Target, from: i64, wakeup: Arc<Wakeup>) -> Watched {
        Watched { target, from, wakeup, created: false, refusals: 0 }
    }
}

impl Watcher {
    /// Starts the task, which needs a runtime. It ends with the last sender of the channel.
    pub(crate) fn start(cluster: Arc<Cluster>) -> Watcher {
        let (commands, inbox) = mpsc::unbounded_channel();
        let backoff = Backoff::new(REOPEN, MAX_PAUSE);
        let behind = Backoff::new(BEHIND, BEHIND_MOST);
        let task = WatchTask { cluster, inbox, watches: HashMap::new(), backoff, behind };
        drop(leasehold_machine::spawn(task.run()));
        Watcher { commands, last: AtomicI64::new(0) }
    }

    /// Watches targets for what happens at or after the revision `from`, until the first change of any
    /// of them.
    pub(crate) fn watch(&self, targets: impl IntoIterator<Item = Target>, from: i64) -> Watch {
        let wakeup = Arc::new(Wakeup::default());
        let mut numbers = Vec::new();
        for target in targets {
            let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
            let watched = Watched::new(target, from, wakeup.clone());
            if self.commands.send(Command::Watch(number, watched)).is_err() {
                // The runtime is going down with the task.
                wakeup.wake(None);
            }
            numbers.push(number);
        }
        Watch { numbers, wakeup, commands: self.commands.clone() }
    }

    /// Waits for the first change in a range at or after the revision `from`, as [`Watch::woken`].
    pub(crate) async fn changed(&self, span: Span, from: i64) -> Result<(), Failure> {
        self.watch([Target::Any(span)], from).woken().await
    }
}

impl Watch {
    /// Waits for the first change, or for anything that makes it necessary to look again.
    ///
    /// # Errors
    /// The failure that makes watching impossible.
    pub(crate) async fn woken(&self) -> Result<(), Failure> {
        self.wakeup.notify.notified().await;
        match self.wakeup.refused.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Returns the wakeup, for other events that may wake the waiter.
    pub(crate) fn wakeup(&self) -> &Arc<Wakeup> {
        &self.wakeup
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.commands.send(Command::Forget(std::mem::take(&mut self.numbers))));
    }
}

impl Wakeup {
    /// Wakes the waiter, now or when it begins to wait.
    pub(crate) fn wake(&self, refused: Option<Failure>) {
        if refused.is_some() {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
        }
        self.notify.notify_one();
    }
}

/// The task.
struct WatchTask {
    cluster: Arc<Cluster>,
    inbox: mpsc::UnboundedReceiver<Command>,
    watches: HashMap<i64, Watched>,
    /// The pauses between streams that bring nothing.
    backoff: Backoff,
    /// The pauses before waiters are woken whose watches begin at a revision that the server does not know yet.
    behind: Backoff,
}

/// An open stream.
struct Stream<'a> {
    server: &'a Chosen<'a>,
    conn: Connection,
    answers: Streaming<WatchResponse>,
    sender: mpsc::Sender<WatchRequest>,
    outbox: VecDeque<WatchRequest>,
}

/// The reason why a stream was left.
enum WatchOutcome {
    /// No command can arrive any more.
    Closed,
    /// It is to be opened anew.
    Reopen,
}

impl WatchTask {
    async fn run(mut self) {
        loop {
            while self.watches.is_empty() {
                match self.inbox.recv().await {
                    None => return,
                    Some(command) => drop(self.apply(command)),
                }
            }
            if let WatchOutcome::Closed = self.watch().await {
                return;
            }
            tokio::time::sleep(self.backoff.failed(random::chance())).await;
            // While no request is answered, a stream would bring nothing either.
            drop(self.cluster.outage().turn().await);
        }
    }

    /// Opens a stream and stays with it.
    async fn watch(&mut self) -> WatchOutcome {
        let cluster = self.cluster.clone();
        let chosen = cluster.choose();
        let (sender, receiver) = mpsc::channel(AHEAD);
        let mut outbox = self.all();
        // A server opens its side of the stream with its first answer, so it has to be asked something
        // before.
        while let Some(request) = outbox.pop_front() {
            if let Err(full) = sender.try_send(request) {
                outbox.push_front(full.into_inner());
                break;
            }
        }
        let opened = timeout(SILENCE, async {
            let conn = cluster.connection(&chosen).await?;
            let answers = conn.watch(receiver).await.map_err(|status| judge(&status))?;
            Ok((conn, answers))
        });
        let (conn, answers) = match opened.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(Advice::GiveUp(refusal))) => {
                let failure = refusal.without_effect();
                self.watches.drain().for_each(|(_, watched)| watched.wakeup.wake(Some(failure.clone())));
                return WatchOutcome::Reopen;
            }
            Ok(Err(Advice::LogInAgain(_))) => {
                cluster.forget_login(chosen.login());
                return WatchOutcome::Reopen;
            }
            Ok(Err(Advice::TryElsewhere(failure))) => {
                tracing::debug!(server = chosen.name(), %failure, "no stream of watches");
                cluster.prefer_next(&chosen);
                return WatchOutcome::Reopen;
            }
            Err(_) => {
                cluster.reconnect(&chosen);
                return WatchOutcome::Reopen;
            }
        };
        let stream = Stream { server: &chosen, conn, answers, sender, outbox };
        match self.serve(stream).await {
            StreamEnd::Closed => return WatchOutcome::Closed,
            StreamEnd::Failed(Advice::LogInAgain(_)) => cluster.forget_login(chosen.login()),
            StreamEnd::Failed(advice) => {
                tracing::debug!(server = chosen.name(), ?advice, "the stream of watches failed");
                cluster.prefer_next(&chosen);
            }
            StreamEnd::Silent => cluster.reconnect(&chosen),
        }
        tracing::debug!(server = chosen.name(), "the stream of watches is opened anew");
        WatchOutcome::Reopen
    }

    /// Sends requests and handles messages, never waiting for one of them alone: a server that cannot
    /// deliver stops reading.
    async fn serve(&mut self, stream: Stream<'_>) -> StreamEnd {
        let Stream { server, conn, mut answers, sender, mut outbox } = stream;
        let mut replaced = std::pin::pin!(server.replaced());
        let mut silence = std::pin::pin!(tokio::time::sleep(SILENCE));
        // `true` if the server was probed, and if the answer is still awaited.
        let (mut is_probed, mut is_probe_pending) = (false, false);
        loop {
            tokio::select! {
                command = self.inbox.recv() => match command {
                    Some(command) => outbox.extend(self.apply(command)),
                    None => return StreamEnd::Closed,
                },
                permit = sender.reserve(), if !outbox.is_empty() => match (permit, outbox.pop_front()) {
                    (Ok(permit), Some(request)) => permit.send(request),
                    _ => return StreamEnd::Silent,
                },
                message = answers.message() => match message {
                    Ok(Some(message)) => {
                        if let Err(status) = conn.check(message.header) {
                            return StreamEnd::Failed(judge(&status));
                        }
                        is_probe_pending = false;
                        self.backoff.reset();
                        match self.handle(message) {
                            Ok(request) => outbox.extend(request),
                            Err(advice) => return StreamEnd::Failed(advice),
                        }
                    }
                    Ok(None) => return StreamEnd::Silent,
                    Err(status) => return StreamEnd::Failed(judge(&status)),
                },
                () = &mut replaced, if !is_probed => {
                    // Requests go over another connection from now on, so this one is asked once.
                    let Some(watched) = self.watches.values().next() else { return StreamEnd::Silent };
                    (is_probed, is_probe_pending) = (true, true);
                    silence.set(tokio::time::sleep(SILENCE));
                    outbox.push_back(liveness_probe(watched));
                }
                () = &mut silence, if is_probe_pending => return StreamEnd::Silent,
            }
        }
    }

    /// Returns all watches, for a server that knows none of them.
    fn all(&mut self) -> VecDeque<WatchRequest> {
        let create = |(number, watched): (&i64, &mut Watched)| {
            watched.created = false;
            create(*number, watched)
        };
        self.watches.iter_mut().map(create).collect()
    }

    /// Applies a command; returns the requests for the server.
    fn apply(&mut self, command: Command) -> Vec<WatchRequest> {
        match command {
            Command::Watch(number, watched) => {
                let request = create(number, &watched);
                self.watches.insert(number, watched);
                vec![request]
            }
            Command::Forget(numbers) => {
                let ended = numbers.into_iter().filter(|number| self.watches.remove(number).is_some());
                ended.map(cancel).collect()
            }
        }
    }

    /// Wakes the waiters that a message concerns.
    fn handle(&mut self, message: WatchResponse) -> Result<Option<WatchRequest>, Advice> {
        let number = message.watch_id;
        if message.canceled {
            return self.cancelled(&message).map(|()| None);
        }
        if message.created
            && let Some(watched) = self.watches.get_mut(&number)
        {
            (watched.created, watched.refusals) = (true, 0);
            match message.header {
                Some(header) if (1..watched.from - 1).contains(&header.revision) => {
                    drop(leasehold_machine::spawn(wake_later(
                        Arc::downgrade(&watched.wakeup),
                        self.behind.failed(random::chance()),
                    )));
                }
                _ => self.behind.reset(),
            }
        }
        if number == PROBE_ID {
            return Ok(Some(cancel(number)));
        }
        if message.events.is_empty() {
            return Ok(None);
        }
        let Some(watched) = self.watches.remove(&number) else { return Ok(None) };
        watched.wakeup.wake(None);
        Ok(Some(cancel(number)))
    }

    fn cancelled(&mut self, message: &WatchResponse) -> Result<(), Advice> {
        let reason = &message.cancel_reason;
        let denied =
            |advice: &str| Failure::new(FailureKind::Denied, Effect::None, format!("etcd: {reason}{advice}"));
        let is_forbidden = reason.contains("permission denied");
        if reason.contains("auth") && !is_forbidden {
            return Err(Advice::LogInAgain(denied("")));
        }
        if is_forbidden && self.may_have_run_out(message.watch_id) {
            return Err(Advice::LogInAgain(denied("")));
        }
        let refused = is_forbidden.then(|| denied(": give the user's role read permission on the prefix"));
        if message.watch_id >= 0 {
            // One that is not here was cancelled by us. One that was compacted away may have missed its
            // event.
            if let Some(watched) = self.watches.remove(&message.watch_id) {
                watched.wakeup.wake(refused);
            }
            return Ok(());
        }
        // Some servers do not say which watch they refuse to create: it is one of those that they did
        // not confirm.
        for (_, watched) in self.watches.extract_if(|_, watched| !watched.created) {
            watched.wakeup.wake(refused.clone());
        }
        Ok(())
    }

    /// Returns `true` if a watch may have been refused only because the token of the stream has run out. Up to 3.4.21
    /// and 3.5.5 a server gives the same reason for that as for a missing permission. The next stream has another
    /// token.
    fn may_have_run_out(&mut self, number: i64) -> bool {
        let mut open: Vec<_> = self.watches.iter_mut().filter(|(_, watched)| !watched.created).collect();
        let mut concerned = open.iter().filter(|(other, _)| number < 0 || number == **other).peekable();
        let may_have = self.cluster.user().is_some()
            && concerned.peek().is_some()
            && concerned.all(|(_, watched)| watched.refusals < TOKENS);
        if may_have {
            // With the same token the others would be refused as well.
            open.iter_mut().for_each(|(_, watched)| watched.refusals += 1);
        }
        may_have
    }
}

/// The way in which a stream ended.
enum StreamEnd {
    Closed,
    Failed(Advice),
    Silent,
}

/// Wakes a waiter after a pause, if it still waits then.
async fn wake_later(wakeup: Weak<Wakeup>, pause: Duration) {
    tokio::time::sleep(pause).await;
    if let Some(wakeup) = wakeup.upgrade() {
        wakeup.wake(None);
    }
}

fn create(number: i64, watched: &Watched) -> WatchRequest {
    let (key, range_end, filters) = match &watched.target {
        Target::Gone(key) => (key.clone(), Vec::new(), vec![NO_PUTS]),
        Target::Any(span) => (span.start.clone(), span.end.clone(), Vec::new()),
    };
    watch_request(WatchOrder::Create(WatchCreateRequest {
        key,
        range_end,
        start_revision: watched.from,
        filters,
        watch_id: number,
    }))
}

/// Returns a watch that reports neither puts nor deletes, of a key that this client may watch. It is
/// confirmed as any other.
fn liveness_probe(watched: &Watched) -> WatchRequest {
    let key = match &watched.target {
        Target::Gone(key) => key.clone(),
        Target::Any(span) => span.start.clone(),
    };
    watch_request(WatchOrder::Create(WatchCreateRequest {
        key,
        range_end: Vec::new(),
        start_revision: 0,
        filters: vec![NO_PUTS, NO_DELETES],
        watch_id: PROBE_ID,
    }))
}

fn cancel(number: i64) -> WatchRequest {
    watch_request(WatchOrder::Cancel(WatchCancelRequest { watch_id: number }))
}

fn watch_request(order: WatchOrder) -> WatchRequest {
    WatchRequest { order: Some(order) }
}

const NO_PUTS: i32 = 0;
const NO_DELETES: i32 = 1;
/// The id of the watch that only shows whether the server answers.
const PROBE_ID: i64 = i64::MAX;
/// Requests that are handed to the connection before it takes them.
const AHEAD: usize = 64;
/// The time within which a server has to open a stream, or to answer a probe.
const SILENCE: Duration = Duration::from_secs(3);
/// The tokens with which a refused watch is tried again. One that another request has fetched may run out before it is
/// used.
const TOKENS: u32 = 2;
/// The first pause before a stream is opened anew.
const REOPEN: Duration = Duration::from_millis(40);
/// The first pause before a waiter looks whose server does not know the revision that it waits for. A follower
/// lags for less.
const BEHIND: Duration = Duration::from_secs(1);
const BEHIND_MOST: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EtcdConfig;

    const DENIED: &str = "etcdserver: permission denied";

    /// Returns a task with watches of these numbers, all with the returned wakeup.
    fn task_of(url: &str, numbers: &[i64]) -> (WatchTask, Arc<Wakeup>) {
        let cluster = Arc::new(Cluster::new(EtcdConfig::parse(url).unwrap()).unwrap());
        let (_, inbox) = mpsc::unbounded_channel();
        let (backoff, behind) = (Backoff::new(REOPEN, MAX_PAUSE), Backoff::new(BEHIND, BEHIND_MOST));
        let mut task = WatchTask { cluster, inbox, watches: HashMap::new(), backoff, behind };
        let wakeup = Arc::new(Wakeup::default());
        for number in numbers {
            let target = Target::Gone(b"leasehold/job".to_vec());
            task.apply(Command::Watch(*number, Watched::new(target, 2, wakeup.clone())));
        }
        (task, wakeup)
    }

    fn created(watch_id: i64) -> WatchResponse {
        WatchResponse { watch_id, created: true, ..WatchResponse::default() }
    }

    fn refused(watch_id: i64, reason: &str) -> WatchResponse {
        WatchResponse { canceled: true, cancel_reason: reason.to_owned(), ..created(watch_id) }
    }

    fn failure(wakeup: &Wakeup) -> Option<FailureKind> {
        wakeup.refused.lock().unwrap().take().map(|failure| failure.kind)
    }

    /// Up to 3.4.21 and 3.5.5 a server says so, too, where the token has run out.
    #[tokio::test]
    async fn denied_watch_is_tried_again_with_other_tokens() {
        for number in [1, -1] {
            let (mut task, wakeup) = task_of("etcd://jobs:secret@h", &[1, 2]);
            for _ in 0..4 {
                let advice = task.handle(refused(number, DENIED));
                assert!(matches!(advice, Err(Advice::LogInAgain(_))), "{number}: {advice:?}");
                assert_eq!((task.all().len(), failure(&wakeup)), (2, None), "{number}: both stay");
                // The token is a new one, until it has run out as well.
                task.handle(created(1)).unwrap();
                task.handle(created(2)).unwrap();
                task.all();
            }
            for _ in 0..TOKENS {
                assert!(task.handle(refused(number, DENIED)).is_err(), "{number}");
                assert_eq!(task.all().len(), 2);
            }
            let advice = task.handle(refused(number, DENIED));
            assert!(matches!(advice, Ok(None)), "{number}: {advice:?}");
            assert_eq!(failure(&wakeup), Some(FailureKind::Denied), "{number}");
        }
    }

    #[tokio::test]
    async fn watches_that_are_denied_together_share_their_tokens() {
        let (mut task, wakeup) = task_of("etcd://jobs:secret@h", &[1, 2]);
        for _ in 0..TOKENS {
            assert!(task.handle(refused(1, DENIED)).is_err());
        }
        for (number, left) in [(1, 1), (2, 0)] {
            assert!(matches!(task.handle(refused(number, DENIED)), Ok(None)), "{number}");
            assert_eq!((task.watches.len(), failure(&wakeup)), (left, Some(FailureKind::Denied)));
        }
    }

    #[tokio::test]
    async fn denied_watch_of_a_client_without_a_login_is_denied_at_once() {
        for number in [1, -1] {
            let (mut task, wakeup) = task_of("etcd://h", &[1]);
            assert!(matches!(task.handle(refused(number, DENIED)), Ok(None)), "{number}");
            assert_eq!((task.watches.len(), failure(&wakeup)), (0, Some(FailureKind::Denied)));
        }
    }

    #[tokio::test]
    async fn refusal_of_a_watch_that_has_ended_concerns_no_other() {
        let (mut task, wakeup) = task_of("etcd://jobs:secret@h", &[1]);
        for number in [7, PROBE_ID] {
            assert!(matches!(task.handle(refused(number, DENIED)), Ok(None)), "{number}");
        }
        assert!(task.handle(refused(1, DENIED)).is_err(), "its first refusal");
        assert_eq!(failure(&wakeup), None);
    }
}
