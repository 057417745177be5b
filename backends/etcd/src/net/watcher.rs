//! The one stream of watches of a client.
//!
//! Ground rules: a watch says that something may have changed, once, and never what: the waiter that is
//! woken looks for itself. So every failure of a watch (compacted, cancelled) is answered by waking. A
//! watch begins at the revision behind the look that it follows, also on a new stream, so nothing is
//! missed in between. Thousands of watches share the stream.
//!
//! Nothing is asked of a stream on which nothing happens: the connection has its own keep-alive, and a
//! server need not answer a request for progress while a watch begins behind its present revision. Only
//! when a request on the same connection was not answered is the server asked for a sign of life: a
//! watch that hears of nothing, which every server confirms. A stream without one is opened anew
//! elsewhere, after pauses that double.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{Effect, Failure, FailureKind};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tonic::Streaming;

use crate::net::cluster::{Chosen, Cluster};
use crate::net::error::{Advice, judge};
use crate::net::member::Line;
use crate::net::outage::Backoff;
use crate::protocol::proto::{
    WatchCancelRequest, WatchCreateRequest, WatchOrder, WatchRequest, WatchResponse,
};
use crate::protocol::txn::Span;

/// The client's end of the stream.
#[derive(Debug)]
pub(crate) struct Watcher {
    orders: mpsc::UnboundedSender<Order>,
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

/// Some watches with one bell. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Watch {
    numbers: Vec<i64>,
    bell: Arc<Bell>,
    orders: mpsc::UnboundedSender<Order>,
}

/// The bell that wakes one waiter.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    notify: Notify,
    refused: Mutex<Option<Failure>>,
}

/// Each watch causes two orders, so that waiters bound the queue.
#[derive(Debug)]
enum Order {
    Watch(i64, Watched),
    Forget(Vec<i64>),
}

#[derive(Debug)]
struct Watched {
    target: Target,
    from: i64,
    bell: Arc<Bell>,
    created: bool,
}

impl Watcher {
    /// Needs a runtime. The task ends with the last end of the channel.
    pub(crate) fn start(cluster: Arc<Cluster>) -> Watcher {
        let (orders, inbox) = mpsc::unbounded_channel();
        let backoff = Backoff::default();
        let watchman = WatchTask { cluster, inbox, watches: HashMap::new(), backoff };
        drop(leasehold_machine::spawn(watchman.run()));
        Watcher { orders, last: AtomicI64::new(0) }
    }

    /// Watches targets for what happens at or after the revision `from`, until the first change of any
    /// of them.
    pub(crate) fn watch(&self, targets: impl IntoIterator<Item = Target>, from: i64) -> Watch {
        let bell = Arc::new(Bell::default());
        let mut numbers = Vec::new();
        for target in targets {
            let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
            let watched = Watched { target, from, bell: bell.clone(), created: false };
            if self.orders.send(Order::Watch(number, watched)).is_err() {
                // The runtime is going down with the task.
                bell.ring(None);
            }
            numbers.push(number);
        }
        Watch { numbers, bell, orders: self.orders.clone() }
    }
}

impl Watch {
    /// Waits for the first change, or for anything that makes it necessary to look again.
    ///
    /// # Errors
    /// The failure that makes watching impossible.
    pub(crate) async fn rung(&self) -> Result<(), Failure> {
        self.bell.notify.notified().await;
        match self.bell.refused.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Returns the bell, for other events that may ring it.
    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.orders.send(Order::Forget(std::mem::take(&mut self.numbers))));
    }
}

impl Bell {
    /// Wakes its waiter, now or when it begins to wait.
    pub(crate) fn ring(&self, refused: Option<Failure>) {
        if refused.is_some() {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
        }
        self.notify.notify_one();
    }
}

/// The task.
struct WatchTask {
    cluster: Arc<Cluster>,
    inbox: mpsc::UnboundedReceiver<Order>,
    watches: HashMap<i64, Watched>,
    /// The pauses between streams that bring nothing.
    backoff: Backoff,
}

/// An open stream.
struct Stream<'a> {
    server: &'a Chosen<'a>,
    line: Line,
    answers: Streaming<WatchResponse>,
    sender: mpsc::Sender<WatchRequest>,
    outbox: VecDeque<WatchRequest>,
}

/// The reason why a stream was left.
enum Left {
    /// No watch can be ordered any more.
    Unwanted,
    /// It is to be opened anew.
    Broken,
}

impl WatchTask {
    async fn run(mut self) {
        loop {
            while self.watches.is_empty() {
                match self.inbox.recv().await {
                    None => return,
                    Some(order) => drop(self.obey(order)),
                }
            }
            if let Left::Unwanted = self.watch().await {
                return;
            }
            tokio::time::sleep(self.backoff.next(REOPEN)).await;
            // While no request is answered, a stream would bring nothing either.
            drop(self.cluster.outage().turn().await);
        }
    }

    /// Opens a stream and stays with it.
    async fn watch(&mut self) -> Left {
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
            let line = cluster.line(&chosen).await?;
            let answers = line.watch(receiver).await.map_err(|status| judge(&status))?;
            Ok((line, answers))
        });
        let (line, answers) = match opened.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(Advice::GiveUp(refusal))) => {
                let failure = refusal.of_a_look();
                self.watches.drain().for_each(|(_, watched)| watched.bell.ring(Some(failure.clone())));
                return Left::Broken;
            }
            Ok(Err(Advice::LogInAgain(_))) => {
                cluster.forget_login(chosen.login());
                return Left::Broken;
            }
            Ok(Err(Advice::TryElsewhere(failure))) => {
                tracing::debug!(server = chosen.name(), %failure, "no stream of watches");
                cluster.leave(&chosen);
                return Left::Broken;
            }
            Err(_) => {
                cluster.reconnect(&chosen);
                return Left::Broken;
            }
        };
        let stream = Stream { server: &chosen, line, answers, sender, outbox };
        match self.attend(stream).await {
            Ended::Unwanted => return Left::Unwanted,
            Ended::Failed(Advice::LogInAgain(_)) => cluster.forget_login(chosen.login()),
            Ended::Failed(advice) => {
                tracing::debug!(server = chosen.name(), ?advice, "the stream of watches failed");
                cluster.leave(&chosen);
            }
            Ended::Silent => cluster.reconnect(&chosen),
        }
        tracing::debug!(server = chosen.name(), "the stream of watches is opened anew");
        Left::Broken
    }

    /// Sends orders and takes in what comes, never waiting for one of them alone: a server that cannot
    /// deliver stops reading.
    async fn attend(&mut self, stream: Stream<'_>) -> Ended {
        let Stream { server, line, mut answers, sender, mut outbox } = stream;
        let mut replaced = std::pin::pin!(server.replaced());
        let mut silence = std::pin::pin!(tokio::time::sleep(SILENCE));
        // `true` if a sign of life was asked for, and is still awaited.
        let (mut is_doubted, mut is_awaited) = (false, false);
        loop {
            tokio::select! {
                order = self.inbox.recv() => match order {
                    Some(order) => outbox.extend(self.obey(order)),
                    None => return Ended::Unwanted,
                },
                permit = sender.reserve(), if !outbox.is_empty() => match (permit, outbox.pop_front()) {
                    (Ok(permit), Some(request)) => permit.send(request),
                    _ => return Ended::Silent,
                },
                message = answers.message() => match message {
                    Ok(Some(message)) => {
                        if let Err(status) = line.check(message.header) {
                            return Ended::Failed(judge(&status));
                        }
                        is_awaited = false;
                        self.backoff.reset();
                        match self.take_in(message) {
                            Ok(request) => outbox.extend(request),
                            Err(advice) => return Ended::Failed(advice),
                        }
                    }
                    Ok(None) => return Ended::Silent,
                    Err(status) => return Ended::Failed(judge(&status)),
                },
                () = &mut replaced, if !is_doubted => {
                    // Requests go over another connection from now on, so this one is asked once.
                    let Some(watched) = self.watches.values().next() else { return Ended::Silent };
                    (is_doubted, is_awaited) = (true, true);
                    silence.set(tokio::time::sleep(SILENCE));
                    outbox.push_back(sign_of_life(watched));
                }
                () = &mut silence, if is_awaited => return Ended::Silent,
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

    /// Carries out an order; returns the requests for the server.
    fn obey(&mut self, order: Order) -> Vec<WatchRequest> {
        match order {
            Order::Watch(number, watched) => {
                let request = create(number, &watched);
                self.watches.insert(number, watched);
                vec![request]
            }
            Order::Forget(numbers) => {
                let ended = numbers.into_iter().filter(|number| self.watches.remove(number).is_some());
                ended.map(cancel).collect()
            }
        }
    }

    /// Wakes the waiters that a message concerns.
    fn take_in(&mut self, message: WatchResponse) -> Result<Option<WatchRequest>, Advice> {
        let number = message.watch_id;
        if message.canceled {
            return self.cancelled(&message).map(|()| None);
        }
        if message.created
            && let Some(watched) = self.watches.get_mut(&number)
        {
            watched.created = true;
        }
        if number == SIGN_OF_LIFE {
            return Ok(Some(cancel(number)));
        }
        if message.events.is_empty() {
            return Ok(None);
        }
        let Some(watched) = self.watches.remove(&number) else { return Ok(None) };
        watched.bell.ring(None);
        Ok(Some(cancel(number)))
    }

    fn cancelled(&mut self, message: &WatchResponse) -> Result<(), Advice> {
        let reason = &message.cancel_reason;
        if reason.contains("auth") && !reason.contains("permission denied") {
            let failure = Failure::new(FailureKind::Denied, Effect::None, format!("etcd: {reason}"));
            return Err(Advice::LogInAgain(failure));
        }
        let refused = reason.contains("permission denied").then(|| {
            let advice = "give the user's role read permission on the prefix";
            Failure::new(FailureKind::Denied, Effect::None, format!("etcd: {reason}: {advice}"))
        });
        if message.watch_id >= 0 {
            // One that is not here was cancelled by us. One that was compacted away may have missed its
            // event.
            if let Some(watched) = self.watches.remove(&message.watch_id) {
                watched.bell.ring(refused);
            }
            return Ok(());
        }
        // Some servers do not say which watch they refuse to create: it is one of those that they did
        // not confirm.
        for (_, watched) in self.watches.extract_if(|_, watched| !watched.created) {
            watched.bell.ring(refused.clone());
        }
        Ok(())
    }
}

/// The way in which a stream ended.
enum Ended {
    Unwanted,
    Failed(Advice),
    Silent,
}

fn create(number: i64, watched: &Watched) -> WatchRequest {
    let (key, range_end, filters) = match &watched.target {
        Target::Gone(key) => (key.clone(), Vec::new(), vec![NO_PUTS]),
        Target::Any(span) => (span.start.clone(), span.end.clone(), Vec::new()),
    };
    order(WatchOrder::Create(WatchCreateRequest {
        key,
        range_end,
        start_revision: watched.from,
        filters,
        watch_id: number,
    }))
}

/// Returns a watch that hears neither of puts nor of deletes, of a key that this client may watch. It
/// is answered as any other.
fn sign_of_life(watched: &Watched) -> WatchRequest {
    let key = match &watched.target {
        Target::Gone(key) => key.clone(),
        Target::Any(span) => span.start.clone(),
    };
    order(WatchOrder::Create(WatchCreateRequest {
        key,
        range_end: Vec::new(),
        start_revision: 0,
        filters: vec![NO_PUTS, NO_DELETES],
        watch_id: SIGN_OF_LIFE,
    }))
}

fn cancel(number: i64) -> WatchRequest {
    order(WatchOrder::Cancel(WatchCancelRequest { watch_id: number }))
}

fn order(order: WatchOrder) -> WatchRequest {
    WatchRequest { order: Some(order) }
}

const NO_PUTS: i32 = 0;
const NO_DELETES: i32 = 1;
/// The number of the watch that only shows whether the server answers.
const SIGN_OF_LIFE: i64 = i64::MAX;
/// Orders that are handed to the connection before it takes them.
const AHEAD: usize = 64;
/// The time within which a server has to open a stream, or to give a sign of life.
const SILENCE: Duration = Duration::from_secs(3);
/// The first pause before a stream is opened anew.
const REOPEN: Duration = Duration::from_millis(40);
