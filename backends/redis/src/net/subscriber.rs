//! One subscription connection for all waiters of a client.
//!
//! Any number of waiters share it; a channel is subscribed once, however many listen. The connection
//! exists only while it has listeners. When it breaks, all waiters are notified to look for themselves,
//! and until it is back they know that they hear nothing.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Failure, FailureKind};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::net::backoff::Backoff;
use crate::net::connection::Dialer;
use crate::net::endpoint::Target;
use crate::net::pubsub_conn::{End, PubSubConn, PubSubEvent};
use crate::net::timer;
use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::error;

/// A listener on channels, on behalf of waiters.
#[derive(Debug)]
pub(crate) struct Subscriber {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The news on the channel of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Anything may have changed: look.
    Everyone,
    /// Something became free, and no waiter was called for it.
    Freed,
    /// These claims have to answer, and one may have answered.
    Called {
        /// The claims that are called: their turn has come, or their silence keeps others waiting.
        called: Arc<[u32]>,
        /// One that was called before, and asks again now.
        answered: Option<u32>,
    },
}

/// The end of one listener. Dropping it ends the listening.
#[derive(Debug)]
pub(crate) struct Ear {
    shared: Arc<Shared>,
    channel: String,
    news: broadcast::Receiver<News>,
    state: watch::Receiver<State>,
}

impl Subscriber {
    /// Connects when the first listener comes.
    pub(crate) fn new(dialer: Arc<Dialer>, reach: ChannelScope) -> Subscriber {
        let shared = Shared { dialer, reach, board: Mutex::default(), work: Notify::new() };
        Subscriber { shared: Arc::new(shared), task: Mutex::default() }
    }

    /// Listens on a channel that is subscribed already.
    pub(crate) fn overhear(&self, channel: &str) -> Option<Ear> {
        let mut board = self.shared.board();
        let entry = board.channels.get_mut(channel)?;
        let hearing = matches!(*entry.state.borrow(), State::Hearing);
        hearing.then(|| entry.listen(&self.shared, channel))
    }

    /// Listens on a channel; returns once the server has confirmed it, or once it is known that nothing
    /// can be heard for now.
    ///
    /// # Errors
    /// The server does not permit it, or too many channels are listened to.
    pub(crate) async fn listen(&self, channel: &str) -> Result<Ear, Failure> {
        let mut ear = {
            let mut board = self.shared.board();
            if board.channels.len() >= MAX_CHANNELS && !board.channels.contains_key(channel) {
                return Err(Failure::unavailable(format!(
                    "{MAX_CHANNELS} resources are waited for already: use another client, or ?wait=poll"
                )));
            }
            let entry = board.channels.entry(channel.to_owned()).or_insert_with(Channel::new);
            let ear = entry.listen(&self.shared, channel);
            if !ear.is_hearing() {
                board.wanted.push(channel.to_owned());
            }
            ear
        };
        self.ensure_running();
        self.shared.work.notify_one();
        // The sender lives in the board for as long as it has listeners; were it gone, nothing could be
        // heard.
        let _ = ear.state.wait_for(|state| !matches!(state, State::Wanted)).await;
        let state = ear.state.borrow().clone();
        match state {
            State::Refused(failure) => Err(failure),
            State::Wanted | State::Hearing | State::Deaf => Ok(ear),
        }
    }

    /// Wakes the listeners of the channels that `moved` selects: another server publishes there by now.
    pub(crate) fn ring(&self, moved: impl Fn(&str) -> bool) {
        let board = self.shared.board();
        board
            .channels
            .iter()
            .filter(|(name, _)| moved(name))
            .for_each(|(_, entry)| entry.tell(News::Everyone));
    }

    /// Returns `true` if this ear listens here.
    pub(crate) fn has(&self, ear: &Ear) -> bool {
        Arc::ptr_eq(&self.shared, &ear.shared)
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

impl Ear {
    /// Waits for the next news. Where some were missed, it is [`News::Everyone`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn hear(&mut self) -> News {
        match self.news.recv().await {
            Ok(news) => news,
            Err(broadcast::error::RecvError::Lagged(_)) => News::Everyone,
            // Every sender lives as long as its listeners; looking is right in any case.
            Err(broadcast::error::RecvError::Closed) => News::Everyone,
        }
    }

    /// Returns `true` if news can be heard at present.
    pub(crate) fn is_hearing(&self) -> bool {
        matches!(*self.state.borrow(), State::Hearing)
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if let Some(entry) = self.shared.board().channels.get_mut(&self.channel) {
            entry.listeners = entry.listeners.saturating_sub(1);
            entry.quiet_since = timer::now();
        }
    }
}

/// Channels that may be listened to at the same time.
const MAX_CHANNELS: usize = 100_000;

/// Channels that are subscribed by one command.
const MAX_SUBSCRIBE: usize = 500;

/// The number of news that a slow listener may leave unread before it has to look.
const BACKLOG: usize = 32;

/// The time for which a channel without listeners stays subscribed: waits for the same resource often
/// follow each other closely.
const LINGER: Duration = Duration::from_secs(5);

/// The period in which channels without listeners are unsubscribed and the connection is pinged. A ping
/// notices a server that died silently; waiters must not miss news for much longer than the cluster
/// takes to replace it.
const SWEEP: Duration = Duration::from_secs(5);

/// Pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Shared {
    dialer: Arc<Dialer>,
    reach: ChannelScope,
    board: Mutex<Board>,
    work: Notify,
}

/// The listeners of each channel.
#[derive(Debug, Default)]
struct Board {
    channels: HashMap<String, Channel>,
    /// Channels to be subscribed; some of them twice, or not needed any more.
    wanted: Vec<String>,
}

#[derive(Debug)]
struct Channel {
    news: broadcast::Sender<News>,
    state: watch::Sender<State>,
    listeners: usize,
    quiet_since: Instant,
}

#[derive(Clone, Debug)]
enum State {
    /// Not subscribed yet.
    Wanted,
    /// The server confirmed it.
    Hearing,
    /// The connection is broken, or cannot be made.
    Deaf,
    /// The server does not permit it.
    Refused(Failure),
}

impl Channel {
    fn new() -> Channel {
        Channel {
            news: broadcast::Sender::new(BACKLOG),
            state: watch::Sender::new(State::Wanted),
            listeners: 0,
            quiet_since: timer::now(),
        }
    }

    fn listen(&mut self, shared: &Arc<Shared>, channel: &str) -> Ear {
        self.listeners += 1;
        if matches!(*self.state.borrow(), State::Refused(_)) {
            // Rights change: each listener is answered anew.
            self.state.send_replace(State::Wanted);
        }
        Ear {
            shared: shared.clone(),
            channel: channel.to_owned(),
            news: self.news.subscribe(),
            state: self.state.subscribe(),
        }
    }

    fn set(&self, state: &State) {
        let before = self.state.send_replace(state.clone());
        // A waiter for its first subscription looks next anyway; all others may have missed something.
        if !matches!(before, State::Wanted) {
            self.tell(News::Everyone);
        }
    }

    fn tell(&self, news: News) {
        // A message without a listener is not an error.
        let _ = self.news.send(news);
    }
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self) -> bool {
        self.board().channels.values().all(|entry| entry.listeners == 0)
    }

    /// Wants all subscriptions again: a new connection has none yet.
    fn want_all(&self) {
        let mut board = self.board();
        board.wanted = board.channels.keys().cloned().collect();
    }

    /// Channels to subscribe next.
    fn take_wanted(&self, subscribed: &Subscribed) -> Vec<String> {
        let board = &mut *self.board();
        let mut next = HashSet::new();
        while next.len() < MAX_SUBSCRIBE
            && let Some(name) = board.wanted.pop()
        {
            let Some(entry) = board.channels.get(&name).filter(|entry| entry.listeners > 0) else { continue };
            match subscribed.get(&name) {
                None => _ = next.insert(name),
                // The answer came before this listener did.
                Some(Stage::Confirmed) => entry.set(&State::Hearing),
                Some(Stage::Asked) => {}
            }
        }
        next.into_iter().collect()
    }

    /// Forgets channels that had no listener for a while.
    fn forget_quiet(&self) {
        let stays = |entry: &Channel| entry.listeners > 0 || entry.quiet_since.elapsed() < LINGER;
        self.board().channels.retain(|_, entry| stays(entry));
    }

    /// Returns the subscribed channels that have no entry on the board.
    fn unknown(&self, subscribed: &Subscribed) -> Vec<String> {
        let board = self.board();
        subscribed.keys().filter(|name| !board.channels.contains_key(*name)).cloned().collect()
    }

    fn set<'a>(&self, names: impl IntoIterator<Item = &'a String>, state: &State) {
        let board = self.board();
        names.into_iter().filter_map(|name| board.channels.get(name)).for_each(|entry| entry.set(state));
    }

    fn set_all(&self, state: &State) {
        self.board().channels.values().for_each(|entry| entry.set(state));
    }
}

/// Keeps a connection for as long as it has listeners.
async fn run(shared: Arc<Shared>) {
    let mut outage = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
    loop {
        if shared.is_idle() {
            shared.work.notified().await;
            continue;
        }
        match PubSubConn::open(&shared.dialer, shared.reach).await {
            Ok((ears, target)) => {
                match serve(&shared, ears, &target).await {
                    Ended::Unneeded => continue,
                    Ended::Broken => outage.worked(),
                    Ended::Unheard => {}
                }
                shared.set_all(&State::Deaf);
            }
            Err(failure) if failure.kind == FailureKind::Unavailable => shared.set_all(&State::Deaf),
            Err(failure) => shared.set_all(&State::Refused(failure)),
        }
        shared.forget_quiet();
        outage.failed(timer::now());
        timer::at(outage.opens_at()).await;
    }
}

/// The channels of one connection that are subscribed or asked for.
type Subscribed = HashMap<String, Stage>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asked,
    Confirmed,
}

/// The reason why a connection is served no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Unneeded,
    Broken,
    /// It broke before anything was heard on it.
    Unheard,
}

/// Serves one connection until it breaks or has no listeners any more.
async fn serve(shared: &Shared, mut ears: PubSubConn, target: &Target) -> Ended {
    let mut subscribed = Subscribed::new();
    let mut sweep = tokio::time::interval_at(timer::after(SWEEP), SWEEP);
    let mut broken = Ended::Unheard;
    shared.want_all();
    if subscribe(shared, &mut ears, &mut subscribed).await.is_err() {
        return broken;
    }
    let source = shared.dialer.source();
    loop {
        let overdue = ears.overdue_at();
        let served = tokio::select! {
            heard = ears.hear() => {
                let Some(heard) = heard else { return broken };
                if !matches!(heard, PubSubEvent::Refused { .. }) {
                    broken = Ended::Broken;
                }
                pass_on(shared, heard, &mut subscribed, target);
                Ok(())
            }
            () = shared.work.notified() => subscribe(shared, &mut ears, &mut subscribed).await,
            // The server that decides now sends its news on a connection of its own.
            () = source.superseded(target) => return broken,
            () = timer::at(overdue) => return broken,
            _ = sweep.tick() => tidy(shared, &mut ears, &mut subscribed).await,
        };
        if served.is_err() {
            return broken;
        }
        if subscribed.is_empty() && shared.is_idle() {
            return Ended::Unneeded;
        }
    }
}

/// Passes what was heard on to the waiters that it concerns.
fn pass_on(shared: &Shared, heard: PubSubEvent, subscribed: &mut Subscribed, target: &Target) {
    match heard {
        PubSubEvent::Message { channel, payload } => {
            if let Some(entry) = shared.board().channels.get(&channel) {
                entry.tell(read(&payload));
            }
        }
        PubSubEvent::Subscribed(channel) => {
            shared.set([&channel], &State::Hearing);
            subscribed.insert(channel, Stage::Confirmed);
        }
        // It may have been asked for again meanwhile.
        PubSubEvent::Ended { by: End::Us, .. } => {}
        PubSubEvent::Ended { channel, by: End::Server } => {
            subscribed.remove(&channel);
            shared.dialer.source().doubt(target);
            shared.set([&channel], &State::Deaf);
        }
        PubSubEvent::Refused { channels, reason } => {
            for channel in &channels {
                subscribed.remove(channel);
            }
            let state = if error::is_of_another(&reason) {
                shared.dialer.source().doubt(target);
                State::Deaf
            } else {
                State::Refused(error::of_answer(&reason, &target.endpoint.to_string()))
            };
            shared.set(&channels, &state);
        }
        PubSubEvent::Alive => {}
    }
}

/// Subscribes what is wanted.
async fn subscribe(shared: &Shared, ears: &mut PubSubConn, subscribed: &mut Subscribed) -> io::Result<()> {
    loop {
        let wanted = shared.take_wanted(subscribed);
        if wanted.is_empty() {
            return Ok(());
        }
        subscribed.extend(wanted.iter().map(|name| (name.clone(), Stage::Asked)));
        ears.subscribe(wanted).await?;
    }
}

/// Unsubscribes channels that have no listeners any more, and pings a silent connection: one that is
/// cut off without a word would otherwise be listened to for ever.
async fn tidy(shared: &Shared, ears: &mut PubSubConn, subscribed: &mut Subscribed) -> io::Result<()> {
    ears.ping().await?;
    shared.forget_quiet();
    let quiet = shared.unknown(subscribed);
    if quiet.is_empty() {
        return Ok(());
    }
    for name in &quiet {
        subscribed.remove(name);
    }
    ears.unsubscribe(quiet).await
}

fn read(payload: &[u8]) -> News {
    match payload {
        b"-" => News::Freed,
        _ => {
            let mut answered = None;
            let mut read_one = |word: &[u8]| {
                let word = std::str::from_utf8(word).ok()?;
                // The number reader takes a sign, too.
                let address = u32::from_str_radix(word.trim_start_matches('+'), 16).ok()?;
                if word.starts_with('+') {
                    answered = Some(address);
                    return Some(None);
                }
                Some(Some(address))
            };
            let words: Option<Vec<Option<u32>>> =
                payload.split(|byte| *byte == b' ').map(&mut read_one).collect();
            // Also for what is not understood: looking is always right.
            words.map_or(News::Everyone, |words| News::Called {
                called: words.into_iter().flatten().collect(),
                answered,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RedisConfig;
    use crate::net::endpoint::{Fixed, Source};

    #[tokio::test]
    async fn what_nobody_asked_for_alone_makes_a_server_doubtful() {
        let config = RedisConfig::parse("redis://h").unwrap();
        let source = Arc::new(Fixed::new(config.endpoint.clone()));
        let target = source.target().await.unwrap();
        let subscriber =
            Subscriber::new(Arc::new(Dialer::new(config, source.clone())), ChannelScope::Everywhere);
        let shared = &subscriber.shared;
        let ear = {
            let mut board = shared.board();
            board.wanted.push("c".to_owned());
            board.channels.entry("c".to_owned()).or_insert_with(Channel::new).listen(shared, "c")
        };
        let mut subscribed = Subscribed::new();
        assert_eq!(shared.take_wanted(&subscribed), ["c"]);
        // It was unsubscribed and subscribed again before the server had answered the first.
        subscribed.insert("c".to_owned(), Stage::Asked);
        pass_on(shared, PubSubEvent::Ended { channel: "c".into(), by: End::Us }, &mut subscribed, &target);
        pass_on(shared, PubSubEvent::Subscribed("c".into()), &mut subscribed, &target);
        assert!(source.is_current(&target) && ear.is_hearing());
        assert_eq!(subscribed.get("c"), Some(&Stage::Confirmed));
        // A listener that comes after the answer hears at once.
        shared.board().channels.remove("c");
        let late = {
            let mut board = shared.board();
            board.wanted.push("c".to_owned());
            board.channels.entry("c".to_owned()).or_insert_with(Channel::new).listen(shared, "c")
        };
        assert!(shared.take_wanted(&subscribed).is_empty() && late.is_hearing());
        pass_on(
            shared,
            PubSubEvent::Ended { channel: "c".into(), by: End::Server },
            &mut subscribed,
            &target,
        );
        assert!(!source.is_current(&target) && !late.is_hearing() && subscribed.is_empty());
    }

    #[test]
    fn what_nobody_knows_any_more_is_given_up() {
        let config = RedisConfig::parse("redis://h").unwrap();
        let source = Arc::new(Fixed::new(config.endpoint.clone()));
        let subscriber = Subscriber::new(Arc::new(Dialer::new(config, source)), ChannelScope::Everywhere);
        let subscribed = Subscribed::from([("c".to_owned(), Stage::Confirmed)]);
        assert_eq!(subscriber.shared.unknown(&subscribed), ["c"]);
        let ear = subscriber
            .shared
            .board()
            .channels
            .entry("c".to_owned())
            .or_insert_with(Channel::new)
            .listen(&subscriber.shared, "c");
        assert!(subscriber.shared.unknown(&subscribed).is_empty());
        drop(ear);
    }

    #[test]
    fn what_is_not_understood_makes_everybody_look() {
        assert_eq!(read(b"-"), News::Freed);
        assert_eq!(read(b"*"), News::Everyone);
        assert_eq!(read(b""), News::Everyone);
        assert_eq!(read(b"0000000g"), News::Everyone);
        assert_eq!(read(&[0xff; 9]), News::Everyone);
        let news = |called: &[u32], answered| News::Called { called: called.into(), answered };
        assert_eq!(read(b"0000000a ffffffff"), news(&[10, u32::MAX], None));
        assert_eq!(read(b"+0000000a"), news(&[], Some(10)));
        assert_eq!(read(b"+0000000a 00000003"), news(&[3], Some(10)));
    }
}
