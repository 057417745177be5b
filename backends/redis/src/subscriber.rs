//! One subscription connection for all waiters of a client.
//!
//! Any number of waiters share it; a channel is subscribed once, however many listen. The connection exists only while
//! somebody listens. When it breaks, everybody is told to look for themselves, and until it is back they know that
//! they hear nothing.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Failure, FailureKind};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::connection::Dialer;
use crate::ears::{Ears, Heard, Reach};
use crate::refusal;
use crate::target::Target;
use crate::timer;

/// Listens on channels for whoever waits.
#[derive(Debug)]
pub(crate) struct Subscriber {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// What is told on the channel of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Anything may have changed: look.
    Everyone,
    /// Something became free, and nobody in the line was called for it.
    Freed,
    /// The turn of these claims has come.
    Called(Arc<[u32]>),
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
    pub(crate) fn new(dialer: Arc<Dialer>, reach: Reach) -> Subscriber {
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

    /// Listens on a channel; comes back once the server has confirmed it, or once it is known that nothing can be
    /// heard for now.
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
        // The sender lives in the board for as long as somebody listens; were it gone, nothing could be heard.
        let _ = ear.state.wait_for(|state| !matches!(state, State::Wanted)).await;
        let state = ear.state.borrow().clone();
        match state {
            State::Refused(failure) => Err(failure),
            State::Wanted | State::Hearing | State::Deaf => Ok(ear),
        }
    }

    /// Whether this ear listens here.
    pub(crate) fn has(&self, ear: &Ear) -> bool {
        Arc::ptr_eq(&self.shared, &ear.shared)
    }

    fn ensure_running(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        // A runtime that was shut down took its task with it.
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(run(self.shared.clone())));
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
    /// The next news. Where some were missed, it is [`News::Everyone`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn hear(&mut self) -> News {
        match self.news.recv().await {
            Ok(news) => news,
            Err(broadcast::error::RecvError::Lagged(_)) => News::Everyone,
            // Every sender lives as long as its listeners; whatever this is, looking is right.
            Err(broadcast::error::RecvError::Closed) => News::Everyone,
        }
    }

    /// Whether news can be heard at present.
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

/// News that a slow listener may leave unread before it is told to look.
const BACKLOG: usize = 32;

/// How long a channel without listeners stays subscribed: waits for the same resource often follow each other closely.
const LINGER: Duration = Duration::from_secs(5);

/// How often channels without listeners are looked for, and how often a silent connection is asked for a sign of life.
const SWEEP: Duration = Duration::from_secs(5);
const SWEEPS_PER_PING: u32 = 4;

/// Pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Shared {
    dialer: Arc<Dialer>,
    reach: Reach,
    board: Mutex<Board>,
    work: Notify,
}

/// Who listens where.
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
        // Whoever waited for its first subscription looks next anyway; everybody else may have missed something.
        if !matches!(before, State::Wanted) {
            self.tell(News::Everyone);
        }
    }

    fn tell(&self, news: News) {
        // Nobody listening is no error.
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

    /// A new connection has subscribed nothing yet.
    fn want_all(&self) {
        let mut board = self.board();
        board.wanted = board.channels.keys().cloned().collect();
    }

    /// Channels to subscribe next.
    fn take_wanted(&self, subscribed: &HashSet<String>) -> Vec<String> {
        let board = &mut *self.board();
        let mut next = HashSet::new();
        while next.len() < MAX_SUBSCRIBE
            && let Some(name) = board.wanted.pop()
        {
            if board.channels.get(&name).is_some_and(|entry| entry.listeners > 0)
                && !subscribed.contains(&name)
            {
                next.insert(name);
            }
        }
        next.into_iter().collect()
    }

    /// Forgets channels that nobody has listened to for a while, and names those of them that were subscribed.
    fn forget_quiet(&self, subscribed: &HashSet<String>) -> Vec<String> {
        let mut gone = Vec::new();
        self.board().channels.retain(|name, entry| {
            let stays = entry.listeners > 0 || entry.quiet_since.elapsed() < LINGER;
            if !stays && subscribed.contains(name) {
                gone.push(name.clone());
            }
            stays
        });
        gone
    }

    fn set<'a>(&self, names: impl IntoIterator<Item = &'a String>, state: &State) {
        let board = self.board();
        names.into_iter().filter_map(|name| board.channels.get(name)).for_each(|entry| entry.set(state));
    }

    fn set_all(&self, state: &State) {
        self.board().channels.values().for_each(|entry| entry.set(state));
    }
}

/// Keeps a connection for as long as somebody listens.
async fn run(shared: Arc<Shared>) {
    let mut pause = FIRST_PAUSE;
    loop {
        if shared.is_idle() {
            shared.work.notified().await;
            continue;
        }
        match shared.dialer.subscription(shared.reach).await {
            Ok((ears, target)) => {
                pause = FIRST_PAUSE;
                if serve(&shared, ears, &target).await == Ended::Unneeded {
                    continue;
                }
                shared.set_all(&State::Deaf);
            }
            Err(failure) if failure.kind == FailureKind::Unavailable => shared.set_all(&State::Deaf),
            Err(failure) => shared.set_all(&State::Refused(failure)),
        }
        shared.forget_quiet(&HashSet::new());
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Why a connection is served no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Unneeded,
    Broken,
}

/// Serves one connection until it breaks or nobody listens any more.
async fn serve(shared: &Shared, mut ears: Ears, target: &Target) -> Ended {
    // What is subscribed, or was asked for.
    let mut subscribed = HashSet::new();
    let mut sweep = tokio::time::interval_at(timer::after(SWEEP), SWEEP);
    let mut sweeps = 0;
    shared.want_all();
    if subscribe(shared, &mut ears, &mut subscribed).await.is_err() {
        return Ended::Broken;
    }
    let source = shared.dialer.source();
    loop {
        let overdue = ears.overdue_at();
        let served = tokio::select! {
            heard = ears.hear() => {
                let Some(heard) = heard else { return Ended::Broken };
                pass_on(shared, heard, &mut subscribed, target);
                Ok(())
            }
            () = shared.work.notified() => subscribe(shared, &mut ears, &mut subscribed).await,
            // Whoever decides now tells on a connection of its own.
            () = source.superseded(target) => return Ended::Broken,
            () = timer::at(overdue) => return Ended::Broken,
            _ = sweep.tick() => {
                sweeps += 1;
                tidy(shared, &mut ears, &mut subscribed, sweeps % SWEEPS_PER_PING == 0).await
            }
        };
        if served.is_err() {
            return Ended::Broken;
        }
        if subscribed.is_empty() && shared.is_idle() {
            return Ended::Unneeded;
        }
    }
}

/// Tells those whom it concerns what was heard.
fn pass_on(shared: &Shared, heard: Heard, subscribed: &mut HashSet<String>, target: &Target) {
    match heard {
        Heard::Message { channel, payload } => {
            if let Some(entry) = shared.board().channels.get(&channel) {
                entry.tell(read(&payload));
            }
        }
        Heard::Subscribed(channel) => shared.set([&channel], &State::Hearing),
        Heard::Ended(channel) => {
            // Nobody asked for it where it is still in the list: the slot went to another server.
            if subscribed.remove(&channel) {
                shared.dialer.source().doubt(target);
                shared.set([&channel], &State::Deaf);
            }
        }
        Heard::Refused { channels, reason } => {
            for channel in &channels {
                subscribed.remove(channel);
            }
            let state = if refusal::is_of_another(&reason) {
                shared.dialer.source().doubt(target);
                State::Deaf
            } else {
                State::Refused(refusal::of_answer(&reason, &target.endpoint.to_string()))
            };
            shared.set(&channels, &state);
        }
        Heard::Alive => {}
    }
}

/// Subscribes what is wanted.
async fn subscribe(shared: &Shared, ears: &mut Ears, subscribed: &mut HashSet<String>) -> io::Result<()> {
    loop {
        let wanted = shared.take_wanted(subscribed);
        if wanted.is_empty() {
            return Ok(());
        }
        subscribed.extend(wanted.iter().cloned());
        ears.subscribe(wanted).await?;
    }
}

/// Unsubscribes what nobody listens to any more, and asks a silent connection for a sign of life: one that is cut off
/// without a word would otherwise be listened to for ever.
async fn tidy(
    shared: &Shared,
    ears: &mut Ears,
    subscribed: &mut HashSet<String>,
    ping: bool,
) -> io::Result<()> {
    if ping {
        ears.ping().await?;
    }
    let quiet = shared.forget_quiet(subscribed);
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
            let read_one = |word: &[u8]| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok();
            let called: Option<Arc<[u32]>> = payload.split(|byte| *byte == b' ').map(read_one).collect();
            // Also for what is not understood: looking is always right.
            called.map_or(News::Everyone, News::Called)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_makes_everybody_look() {
        assert_eq!(read(b"-"), News::Freed);
        assert_eq!(read(b"*"), News::Everyone);
        assert_eq!(read(b""), News::Everyone);
        assert_eq!(read(b"0000000g"), News::Everyone);
        assert_eq!(read(&[0xff; 9]), News::Everyone);
        assert_eq!(read(b"0000000a ffffffff"), News::Called([10, u32::MAX].into()));
    }
}
