//! One subscription connection for all waiters of a client.
//!
//! Any number of waiters share it; a channel is subscribed once for any number of listeners. The connection
//! exists only while it has listeners. When it breaks, all waiters are notified to look for themselves,
//! and until it is back they know that they receive nothing.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Failure, FailureKind, SILENT_AFTER};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::net::connection::Dialer;
use crate::net::endpoint::Target;
use crate::net::outage::Outage;
use crate::net::pubsub_conn::{End, PubSubConn, PubSubEvent};
use crate::net::timer;
use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::error;

/// The subscriptions of one client.
#[derive(Debug)]
pub(crate) struct Subscriber {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// A notification on the channel of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// Anything may have changed: look.
    Changed,
    /// Something became free, and no waiter was called for it.
    Freed,
    /// These claims have to answer, and one may have answered.
    Called {
        /// The claims that are called: their turn has come, or their silence keeps others waiting.
        called: Arc<[u32]>,
        /// A claim that was called before, and asks again now.
        answered: Option<u32>,
        /// Its lease, where that claim was granted.
        lease: Option<Duration>,
    },
}

/// One listener's subscription to a channel. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Subscription {
    shared: Arc<Shared>,
    channel: String,
    notifications: broadcast::Receiver<Notification>,
    state: watch::Receiver<State>,
}

impl Subscriber {
    /// Creates a subscriber, which connects with the first listener.
    pub(crate) fn new(dialer: Arc<Dialer>, scope: ChannelScope) -> Subscriber {
        let shared = Shared { dialer, scope, registry: Mutex::default(), work: Notify::new() };
        Subscriber { shared: Arc::new(shared), task: Mutex::default() }
    }

    /// Joins a channel that is subscribed already.
    pub(crate) fn join(&self, channel: &str) -> Option<Subscription> {
        let mut registry = self.shared.registry();
        let entry = registry.channels.get_mut(channel)?;
        let is_active = matches!(*entry.state.borrow(), State::Active);
        is_active.then(|| entry.subscribe(&self.shared, channel))
    }

    /// Subscribes to a channel; returns once the server has confirmed it, or once nothing can be received for now
    /// because the server does not confirm it soon.
    ///
    /// # Errors
    /// The server does not permit it, or too many channels are listened to.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<Subscription, Failure> {
        let mut subscription = {
            let mut registry = self.shared.registry();
            if registry.channels.len() >= MAX_CHANNELS && !registry.channels.contains_key(channel) {
                return Err(Failure::unavailable(format!(
                    "{MAX_CHANNELS} resources are waited for already: use another client, or ?wait=poll"
                )));
            }
            let entry = registry.channels.entry(channel.to_owned()).or_insert_with(Channel::new);
            let subscription = entry.subscribe(&self.shared, channel);
            if !subscription.is_active() {
                registry.pending.push(channel.to_owned());
            }
            subscription
        };
        self.ensure_running();
        self.shared.work.notify_one();
        // The sender lives in the registry for as long as it has listeners; were it gone, nothing could be
        // received.
        let confirmed = subscription.state.wait_for(|state| !matches!(state, State::Pending));
        if tokio::time::timeout(CONFIRM_LIMIT, confirmed).await.is_err() {
            self.shared.stop_waiting(channel);
        }
        let state = subscription.state.borrow().clone();
        match state {
            State::Refused(failure) => Err(failure),
            State::Pending | State::Active | State::Disconnected => Ok(subscription),
        }
    }

    /// Wakes the listeners of the channels for which `selects` is `true`: another server publishes there by
    /// now.
    pub(crate) fn notify_channels(&self, selects: impl Fn(&str) -> bool) {
        let registry = self.shared.registry();
        registry
            .channels
            .iter()
            .filter(|(name, _)| selects(name))
            .for_each(|(_, entry)| entry.notify(Notification::Changed));
    }

    /// Returns `true` if the subscription is one of this subscriber.
    pub(crate) fn owns(&self, subscription: &Subscription) -> bool {
        Arc::ptr_eq(&self.shared, &subscription.shared)
    }

    fn ensure_running(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        // A runtime that was shut down took its task with it.
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(leasehold_machine::spawn(run(self.shared.clone())));
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

impl Subscription {
    /// Waits for the next notification. Where some were missed, it is [`Notification::Changed`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn recv(&mut self) -> Notification {
        match self.notifications.recv().await {
            Ok(notification) => notification,
            Err(broadcast::error::RecvError::Lagged(_)) => Notification::Changed,
            // Every sender lives as long as its listeners; looking is right in any case.
            Err(broadcast::error::RecvError::Closed) => Notification::Changed,
        }
    }

    /// Returns `true` if notifications can be received at present.
    pub(crate) fn is_active(&self) -> bool {
        matches!(*self.state.borrow(), State::Active)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(entry) = self.shared.registry().channels.get_mut(&self.channel) {
            entry.listeners = entry.listeners.saturating_sub(1);
            entry.unused_since = timer::now();
        }
    }
}

/// Channels that may be listened to at the same time.
const MAX_CHANNELS: usize = 100_000;

/// The time for which a listener waits until its subscription is confirmed, and looks at nothing. It may be called
/// meanwhile: a waiter answers within this time.
const CONFIRM_LIMIT: Duration = SILENT_AFTER;

/// Channels that are subscribed by one command.
const MAX_SUBSCRIBE: usize = 500;

/// The number of notifications that a slow listener may leave unread before it has to look.
const BACKLOG: usize = 32;

/// The time for which a channel without listeners stays subscribed: waits for the same resource often
/// follow each other closely.
const LINGER: Duration = Duration::from_secs(5);

/// The period in which channels without listeners are unsubscribed and the connection is pinged. A ping
/// detects a server that died silently; waiters must not miss notifications for much longer than the
/// cluster takes to replace it.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);

/// Pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Shared {
    dialer: Arc<Dialer>,
    scope: ChannelScope,
    registry: Mutex<Registry>,
    work: Notify,
}

/// The listeners of each channel.
#[derive(Debug, Default)]
struct Registry {
    channels: HashMap<String, Channel>,
    /// Channels to be subscribed; some of them twice, or not needed any more.
    pending: Vec<String>,
    /// Those that are to be subscribed by a command for each, since one for several was refused.
    alone: Vec<String>,
}

impl Registry {
    /// Returns `true` if the channel has to be subscribed.
    fn is_wanted(&self, name: &str, subscribed: &Subscribed) -> bool {
        let Some(entry) = self.channels.get(name).filter(|entry| entry.listeners > 0) else { return false };
        match subscribed.get(name) {
            None => return true,
            // The reply came before this listener did.
            Some(Stage::Confirmed) => entry.set(&State::Active),
            Some(Stage::Requested) => {}
        }
        false
    }
}

#[derive(Debug)]
struct Channel {
    notifications: broadcast::Sender<Notification>,
    state: watch::Sender<State>,
    listeners: usize,
    unused_since: Instant,
}

#[derive(Clone, Debug)]
enum State {
    /// Not subscribed yet.
    Pending,
    /// The server confirmed it.
    Active,
    /// The connection is broken, or cannot be made.
    Disconnected,
    /// The server does not permit it.
    Refused(Failure),
}

impl Channel {
    fn new() -> Channel {
        Channel {
            notifications: broadcast::Sender::new(BACKLOG),
            state: watch::Sender::new(State::Pending),
            listeners: 0,
            unused_since: timer::now(),
        }
    }

    fn subscribe(&mut self, shared: &Arc<Shared>, channel: &str) -> Subscription {
        self.listeners += 1;
        if matches!(*self.state.borrow(), State::Refused(_)) {
            // Rights change: each listener is answered anew.
            self.state.send_replace(State::Pending);
        }
        Subscription {
            shared: shared.clone(),
            channel: channel.to_owned(),
            notifications: self.notifications.subscribe(),
            state: self.state.subscribe(),
        }
    }

    fn set(&self, state: &State) {
        let before = self.state.send_replace(state.clone());
        // A waiter for its first subscription looks next anyway; all others may have missed something.
        if !matches!(before, State::Pending) {
            self.notify(Notification::Changed);
        }
    }

    fn notify(&self, notification: Notification) {
        // A message without a listener is not an error.
        let _ = self.notifications.send(notification);
    }
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self) -> bool {
        self.registry().channels.values().all(|entry| entry.listeners == 0)
    }

    /// Marks all channels as pending: a new connection has no subscriptions yet.
    fn mark_all_pending(&self) {
        let mut registry = self.registry();
        registry.pending = registry.channels.keys().cloned().collect();
        registry.alone.clear();
    }

    /// Marks the channels as pending that the server refused, or whose subscriptions it ended: it may serve them again.
    fn mark_refused_pending(&self, subscribed: &Subscribed) {
        let registry = &mut *self.registry();
        let refused = registry.channels.keys().filter(|name| !subscribed.contains_key(*name));
        registry.pending.extend(refused.cloned());
    }

    /// Takes the channels to subscribe next, by one command.
    fn take_pending(&self, subscribed: &Subscribed) -> Vec<String> {
        let registry = &mut *self.registry();
        while let Some(name) = registry.alone.pop() {
            if registry.is_wanted(&name, subscribed) {
                return vec![name];
            }
        }
        let mut next = HashSet::new();
        while next.len() < MAX_SUBSCRIBE
            && let Some(name) = registry.pending.pop()
        {
            if registry.is_wanted(&name, subscribed) {
                next.insert(name);
            }
        }
        next.into_iter().collect()
    }

    /// Removes channels that had no listener for a while.
    fn remove_unused(&self) {
        let is_used = |entry: &Channel| entry.listeners > 0 || entry.unused_since.elapsed() < LINGER;
        self.registry().channels.retain(|_, entry| is_used(entry));
    }

    /// Returns the subscribed channels that have no entry in the registry.
    fn unregistered(&self, subscribed: &Subscribed) -> Vec<String> {
        let registry = self.registry();
        subscribed.keys().filter(|name| !registry.channels.contains_key(*name)).cloned().collect()
    }

    fn set<'a>(&self, names: impl IntoIterator<Item = &'a String>, state: &State) {
        let registry = self.registry();
        names.into_iter().filter_map(|name| registry.channels.get(name)).for_each(|entry| entry.set(state));
    }

    /// Lets the listeners of a channel look by themselves until its subscription is confirmed.
    fn stop_waiting(&self, channel: &str) {
        let registry = self.registry();
        if let Some(entry) = registry.channels.get(channel)
            && matches!(*entry.state.borrow(), State::Pending)
        {
            entry.set(&State::Disconnected);
        }
    }

    fn set_all(&self, state: &State) {
        self.registry().channels.values().for_each(|entry| entry.set(state));
    }
}

/// Keeps a connection for as long as it has listeners.
async fn run(shared: Arc<Shared>) {
    let mut outage = Outage::new(FIRST_PAUSE, LAST_PAUSE);
    loop {
        if shared.is_idle() {
            shared.work.notified().await;
            continue;
        }
        match PubSubConn::open(&shared.dialer, shared.scope).await {
            Ok((conn, target)) => {
                match serve(&shared, conn, &target).await {
                    Ended::Idle => continue,
                    Ended::Broken => outage.worked(),
                    Ended::NothingReceived => {}
                }
                shared.set_all(&State::Disconnected);
            }
            Err(failure) if failure.kind == FailureKind::Unavailable => shared.set_all(&State::Disconnected),
            Err(failure) => shared.set_all(&State::Refused(failure)),
        }
        shared.remove_unused();
        outage.failed(timer::now());
        timer::at(outage.opens_at()).await;
    }
}

/// The channels of one connection that are subscribed or asked for.
type Subscribed = HashMap<String, Stage>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Requested,
    Confirmed,
}

/// The reason why a connection is served no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Idle,
    Broken,
    /// It broke before anything was received on it.
    NothingReceived,
}

/// Serves one connection until it breaks or has no listeners any more.
async fn serve(shared: &Shared, mut conn: PubSubConn, target: &Target) -> Ended {
    let mut subscribed = Subscribed::new();
    let mut maintenance = tokio::time::interval_at(timer::after(MAINTENANCE_INTERVAL), MAINTENANCE_INTERVAL);
    let mut broken = Ended::NothingReceived;
    shared.mark_all_pending();
    if subscribe(shared, &mut conn, &mut subscribed).await.is_err() {
        return broken;
    }
    let source = shared.dialer.source();
    loop {
        let overdue = conn.overdue_at();
        let served = tokio::select! {
            event = conn.recv() => {
                let Some(event) = event else { return broken };
                if !matches!(event, PubSubEvent::Refused { .. }) {
                    broken = Ended::Broken;
                }
                dispatch(shared, event, &mut subscribed, target);
                Ok(())
            }
            () = shared.work.notified() => subscribe(shared, &mut conn, &mut subscribed).await,
            // The new primary sends its notifications on a connection of its own.
            () = source.superseded(target) => return broken,
            () = timer::at(overdue) => return broken,
            _ = maintenance.tick() => {
                if conn.scope() != shared.scope {
                    // A server before 7.0 does not end the subscription when the slot goes to another one, as to a
                    // newer one in an upgrade, whose messages do not reach it.
                    source.report_stale(target);
                }
                maintain(shared, &mut conn, &mut subscribed).await
            }
        };
        if served.is_err() {
            return broken;
        }
        if subscribed.is_empty() && shared.is_idle() {
            return Ended::Idle;
        }
    }
}

/// Passes an event on to the waiters that it concerns.
fn dispatch(shared: &Shared, event: PubSubEvent, subscribed: &mut Subscribed, target: &Target) {
    match event {
        PubSubEvent::Message { channel, payload } => {
            if let Some(entry) = shared.registry().channels.get(&channel) {
                entry.notify(parse(&payload));
            }
        }
        PubSubEvent::Subscribed(channel) => {
            shared.set([&channel], &State::Active);
            subscribed.insert(channel, Stage::Confirmed);
        }
        // It may have been asked for again meanwhile.
        PubSubEvent::Ended { by: End::Us, .. } => {}
        PubSubEvent::Ended { channel, by: End::Server } => {
            subscribed.remove(&channel);
            shared.dialer.source().report_stale(target);
            shared.set([&channel], &State::Disconnected);
        }
        PubSubEvent::Refused { channels, reason } => {
            for channel in &channels {
                subscribed.remove(channel);
            }
            let state = if error::is_redirect(&reason) {
                shared.dialer.source().report_stale(target);
                State::Disconnected
            } else if channels.len() > 1 {
                // The server names none of them. The right to one may be all that is missing.
                shared.registry().alone.extend(channels);
                shared.work.notify_one();
                return;
            } else {
                State::Refused(error::of_answer(&reason, &target.endpoint.to_string()))
            };
            shared.set(&channels, &state);
        }
        PubSubEvent::Widened(channels) => {
            for channel in &channels {
                subscribed.remove(channel);
            }
            shared.registry().pending.extend(channels);
            shared.work.notify_one();
        }
        PubSubEvent::Pong => {}
    }
}

/// Subscribes to all pending channels.
async fn subscribe(shared: &Shared, conn: &mut PubSubConn, subscribed: &mut Subscribed) -> io::Result<()> {
    loop {
        let pending = shared.take_pending(subscribed);
        if pending.is_empty() {
            return Ok(());
        }
        subscribed.extend(pending.iter().map(|name| (name.clone(), Stage::Requested)));
        conn.subscribe(pending).await?;
    }
}

/// Unsubscribes from channels that have no listeners any more, subscribes again to those that were refused, and
/// pings the connection: one that is cut off silently would otherwise be used for ever.
async fn maintain(shared: &Shared, conn: &mut PubSubConn, subscribed: &mut Subscribed) -> io::Result<()> {
    conn.ping().await?;
    shared.remove_unused();
    shared.mark_refused_pending(subscribed);
    subscribe(shared, conn, subscribed).await?;
    let unused = shared.unregistered(subscribed);
    if unused.is_empty() {
        return Ok(());
    }
    for name in &unused {
        subscribed.remove(name);
    }
    conn.unsubscribe(unused).await
}

/// Reads a message about one resource.
pub(crate) fn parse(payload: &[u8]) -> Notification {
    match payload {
        b"-" => Notification::Freed,
        _ => {
            let (mut answered, mut lease) = (None, None);
            let number = |text: &str| u32::from_str_radix(text, 16).ok();
            let mut parse_one = |part: &[u8]| {
                let part = std::str::from_utf8(part).ok()?;
                let Some(answer) = part.strip_prefix('+') else { return number(part).map(Some) };
                let (address, millis) = answer.split_once('=').unwrap_or((answer, ""));
                answered = Some(number(address)?);
                if !millis.is_empty() {
                    lease = Some(Duration::from_millis(number(millis)?.into()));
                }
                Some(None)
            };
            let parts: Option<Vec<Option<u32>>> =
                payload.split(|byte| *byte == b' ').map(&mut parse_one).collect();
            // Also for what is not understood: looking is always right.
            parts.map_or(Notification::Changed, |parts| Notification::Called {
                called: parts.into_iter().flatten().collect(),
                answered,
                lease,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::config::RedisConfig;
    use crate::net::endpoint::{Fixed, Source};

    #[tokio::test]
    async fn only_an_unrequested_unsubscribe_reports_a_stale_target() {
        let config = RedisConfig::parse("redis://h").unwrap();
        let source = Arc::new(Fixed::new(config.endpoint.clone()));
        let target = source.target().await.unwrap();
        let subscriber =
            Subscriber::new(Arc::new(Dialer::new(config, source.clone())), ChannelScope::Everywhere);
        let shared = &subscriber.shared;
        let subscription = {
            let mut registry = shared.registry();
            registry.pending.push("c".to_owned());
            registry.channels.entry("c".to_owned()).or_insert_with(Channel::new).subscribe(shared, "c")
        };
        let mut subscribed = Subscribed::new();
        assert_eq!(shared.take_pending(&subscribed), ["c"]);
        // It was unsubscribed and subscribed again before the server had answered the first.
        subscribed.insert("c".to_owned(), Stage::Requested);
        dispatch(shared, PubSubEvent::Ended { channel: "c".into(), by: End::Us }, &mut subscribed, &target);
        dispatch(shared, PubSubEvent::Subscribed("c".into()), &mut subscribed, &target);
        assert!(source.is_current(&target) && subscription.is_active());
        assert_eq!(subscribed.get("c"), Some(&Stage::Confirmed));
        // A listener that comes after the reply is active at once.
        shared.registry().channels.remove("c");
        let late = {
            let mut registry = shared.registry();
            registry.pending.push("c".to_owned());
            registry.channels.entry("c".to_owned()).or_insert_with(Channel::new).subscribe(shared, "c")
        };
        assert!(shared.take_pending(&subscribed).is_empty() && late.is_active());
        dispatch(
            shared,
            PubSubEvent::Ended { channel: "c".into(), by: End::Server },
            &mut subscribed,
            &target,
        );
        assert!(!source.is_current(&target) && !late.is_active() && subscribed.is_empty());
    }

    /// A source that leads to one server, whatever it answers.
    #[derive(Debug)]
    struct Steady(Target);

    #[async_trait::async_trait]
    impl Source for Steady {
        fn describe(&self) -> String {
            self.0.endpoint.to_string()
        }

        async fn target(&self) -> Result<Target, Failure> {
            Ok(self.0.clone())
        }

        fn is_current(&self, target: &Target) -> bool {
            self.0 == *target
        }
    }

    /// Registers a subscription to a channel, which no server has confirmed.
    fn subscribed_to(shared: &Arc<Shared>, name: &str) -> Subscription {
        let mut registry = shared.registry();
        registry.channels.entry(name.to_owned()).or_insert_with(Channel::new).subscribe(shared, name)
    }

    fn subscribed(shared: &Arc<Shared>) -> Subscription {
        subscribed_to(shared, "c")
    }

    #[tokio::test(start_paused = true)]
    async fn forbidden_channel_refuses_no_other() {
        let config = RedisConfig::parse("redis://h").unwrap();
        let target = Target { endpoint: config.endpoint.clone(), epoch: 0, view: 0 };
        let dialer = Dialer::new(config, Arc::new(Steady(target.clone())));
        let subscriber = Subscriber::new(Arc::new(dialer), ChannelScope::Everywhere);
        let shared = subscriber.shared.clone();
        let (mut allowed, mut forbidden) = (subscribed_to(&shared, "a"), subscribed_to(&shared, "b"));
        let (client, mut server) = tokio::io::duplex(1024);
        let conn = PubSubConn::new(Box::new(client), ChannelScope::Everywhere, 4 * MAINTENANCE_INTERVAL);
        let replies = async {
            let mut next = async || {
                let mut sent = Vec::new();
                // The number of texts, and `$length`, text for each.
                let mut lines = 1;
                while sent.iter().filter(|byte| **byte == b'\n').count() < lines {
                    sent.push(server.read_u8().await.unwrap());
                    if let [b'*', count, b'\r', b'\n'] = sent[..] {
                        lines = 1 + 2 * usize::from(count - b'0');
                    }
                }
                let names = |name: &str| sent.ends_with(format!("$1\r\n{name}\r\n").as_bytes());
                let reply = match (lines, names("a")) {
                    (5, true) => "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
                    _ => "-NOPERM no permissions to access one of the channels\r\n",
                };
                server.write_all(reply.as_bytes()).await.unwrap();
            };
            for _ in 0..3 {
                next().await;
            }
            allowed.state.wait_for(|state| matches!(state, State::Active)).await.unwrap();
            forbidden.state.wait_for(|state| matches!(state, State::Refused(_))).await.unwrap();
        };
        tokio::select! {
            ended = serve(&shared, conn, &target) => panic!("{ended:?}"),
            replied = tokio::time::timeout(MAINTENANCE_INTERVAL / 2, replies) => replied.unwrap(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_channel_is_subscribed_once_the_server_serves_it() {
        let config = RedisConfig::parse("redis://h").unwrap();
        let target = Target { endpoint: config.endpoint.clone(), epoch: 0, view: 0 };
        let dialer = Dialer::new(config, Arc::new(Steady(target.clone())));
        let subscriber = Subscriber::new(Arc::new(dialer), ChannelScope::Slot);
        let shared = subscriber.shared.clone();
        let subscription = subscribed(&shared);
        let (client, mut server) = tokio::io::duplex(1024);
        let conn = PubSubConn::new(Box::new(client), ChannelScope::Slot, 4 * MAINTENANCE_INTERVAL);
        let replies = async {
            for reply in
                ["-CLUSTERDOWN the cluster is down\r\n", "*3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n"]
            {
                let mut sent = Vec::new();
                while !sent.ends_with(b"SSUBSCRIBE\r\n$1\r\nc\r\n") {
                    sent.push(server.read_u8().await.unwrap());
                }
                assert!(!subscription.is_active());
                server.write_all(reply.as_bytes()).await.unwrap();
            }
            subscription.state.clone().wait_for(|state| matches!(state, State::Active)).await.unwrap();
        };
        tokio::select! {
            ended = serve(&shared, conn, &target) => panic!("{ended:?}"),
            replied = tokio::time::timeout(4 * MAINTENANCE_INTERVAL, replies) => replied.unwrap(),
        }
    }

    /// It does not end subscriptions of slots that go to other servers.
    #[tokio::test(start_paused = true)]
    async fn the_slots_of_a_server_without_channels_of_slots_are_looked_up_regularly() {
        let config = RedisConfig::parse("redis://h").unwrap();
        let source = Arc::new(Fixed::new(config.endpoint.clone()));
        let target = source.target().await.unwrap();
        let subscriber = Subscriber::new(Arc::new(Dialer::new(config, source.clone())), ChannelScope::Slot);
        let shared = subscriber.shared.clone();
        let subscription = subscribed(&shared);
        let (client, mut server) = tokio::io::duplex(1024);
        let replies = b"-ERR unknown command `SSUBSCRIBE`, \r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
        server.write_all(replies).await.unwrap();
        let conn = PubSubConn::new(Box::new(client), ChannelScope::Slot, 4 * MAINTENANCE_INTERVAL);
        let begun = Instant::now();
        assert_eq!(serve(&shared, conn, &target).await, Ended::Broken);
        assert!(begun.elapsed() < 2 * MAINTENANCE_INTERVAL, "after {:?}", begun.elapsed());
        assert!(!source.is_current(&target), "its view was reported as stale");
        assert!(subscription.is_active());
    }

    #[test]
    fn channel_without_listeners_is_unsubscribed() {
        let config = RedisConfig::parse("redis://h").unwrap();
        let source = Arc::new(Fixed::new(config.endpoint.clone()));
        let subscriber = Subscriber::new(Arc::new(Dialer::new(config, source)), ChannelScope::Everywhere);
        let subscribed = Subscribed::from([("c".to_owned(), Stage::Confirmed)]);
        assert_eq!(subscriber.shared.unregistered(&subscribed), ["c"]);
        let subscription = subscriber
            .shared
            .registry()
            .channels
            .entry("c".to_owned())
            .or_insert_with(Channel::new)
            .subscribe(&subscriber.shared, "c");
        assert!(subscriber.shared.unregistered(&subscribed).is_empty());
        drop(subscription);
    }

    #[test]
    fn malformed_message_wakes_all_waiters() {
        assert_eq!(parse(b"-"), Notification::Freed);
        assert_eq!(parse(b"*"), Notification::Changed);
        assert_eq!(parse(b""), Notification::Changed);
        assert_eq!(parse(b"0000000g"), Notification::Changed);
        assert_eq!(parse(&[0xff; 9]), Notification::Changed);
        assert_eq!(parse(b"+0000000a=0000000g"), Notification::Changed);
        let expected = |called: &[u32], answered, lease: Option<u64>| {
            let lease = lease.map(Duration::from_millis);
            Notification::Called { called: called.into(), answered, lease }
        };
        assert_eq!(parse(b"0000000a ffffffff"), expected(&[10, u32::MAX], None, None));
        assert_eq!(parse(b"+0000000a"), expected(&[], Some(10), None));
        assert_eq!(parse(b"+0000000a=3e8"), expected(&[], Some(10), Some(1000)));
        assert_eq!(parse(b"+0000000a=5265c00 00000003"), expected(&[3], Some(10), Some(86_400_000)));
    }
}
