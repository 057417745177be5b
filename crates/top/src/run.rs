//! The loop: keys, pictures, outcomes and signals come in, and frames go out.
//!
//! Ground rules: a frame is drawn after something has changed, at most ten times a second, or thirty times
//! while a person types; and only if the terminal has taken the last one. A question counts as seen once its frame is
//! written and every key from before is obeyed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Resource};
use leasehold_monitor::actions::{break_claims, consequences_of_break};
use leasehold_monitor::text::unix_ms_now;
use leasehold_monitor::{Followed, FollowedLock, Monitor, Options, Overview};
use ratatui::crossterm::event::{Event, KeyEventKind};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::app::{App, Effect, Facts, Outcome, Target, report};
use crate::dialog::Action;
use crate::screen::draw;
use crate::terminal::OpenTerminal;
use crate::theme::Theme;

/// The settings of the view.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The URL of the store as it is shown, without a password.
    pub store: String,
    /// Only locks whose names begin with this.
    pub prefix: String,
    /// The shortest time between two listings.
    pub interval: Duration,
    /// `true` if nothing can be revoked or broken.
    pub read_only: bool,
    /// `true` if colours are used.
    pub is_coloured: bool,
    /// The reason of a revocation, unless the person types another one.
    pub reason: String,
}

/// The end of the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The signal that ended it; `None` if the person did.
    pub signal: Option<i32>,
    /// The outcomes of what was still under way, for the person.
    pub messages: Vec<String>,
}

/// Shows the locks of a store until the person quits, or a signal ends the view.
///
/// The terminal is restored when this returns, and when its thread panics.
///
/// # Errors
/// Of the terminal. See [`check_terminal`](crate::check_terminal) for one that cannot show the view at all.
pub async fn run(client: Client, settings: Settings) -> io::Result<Ended> {
    let facts = Facts {
        store: settings.store,
        kind: client.profile().name,
        prefix: settings.prefix.clone(),
        read_only: settings.read_only,
        reason: settings.reason,
        consequences: consequences_of_break(client.profile()),
    };
    let prefix = Some(settings.prefix).filter(|prefix| !prefix.is_empty());
    let options = Options { interval: settings.interval, prefix, ..Options::default() };
    let monitor = Monitor::start(client, options);
    let signals = Signals::listen()?;
    let (sender, outcomes) = mpsc::unbounded_channel();
    let mut running = Running {
        app: App::new(facts),
        theme: Theme { is_coloured: settings.is_coloured },
        overview: Some(monitor.overview()),
        followed: None,
        session: OpenTerminal::enter()?,
        monitor,
        sender,
        outcomes,
        pending: 0,
        focus: Vec::new(),
    };
    let ended = running.run(signals).await;
    running.session.leave().await;
    Ok(Ended { signal: ended?, messages: running.last_outcomes().await })
}

/// The view while it runs.
struct Running {
    app: App,
    theme: Theme,
    session: OpenTerminal,
    monitor: Monitor,
    /// The pictures, unless the view is paused.
    overview: Option<watch::Receiver<Arc<Overview>>>,
    followed: Option<Followed>,
    sender: mpsc::UnboundedSender<Outcome>,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    /// The number of outcomes that are to come.
    pending: usize,
    /// The locks on the screen.
    focus: Vec<Resource>,
}

/// An input of the loop.
enum Input {
    Terminal(Option<Event>),
    Picture(Arc<Overview>),
    Lock(Arc<FollowedLock>),
    Outcome(Outcome),
    Signal(i32),
    Continued,
    /// The last frame was written, which has a question.
    Question,
    /// Time has passed.
    Tick,
}

impl Running {
    /// Returns the signal that ended the view.
    async fn run(&mut self, mut signals: Signals) -> io::Result<Option<i32>> {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // The time from which on the next frame may be drawn, while there is something to draw.
        let mut due = Some(Instant::now());
        let mut drawn = Instant::now();
        loop {
            if self.session.is_broken() {
                return Ok(None);
            }
            // Keys from before must not meet the question of the next frame.
            let early = if self.app.hides_question() { self.session.event_now() } else { None };
            let is_due = early.is_none() && due.is_some_and(|due| due <= Instant::now());
            if is_due && self.session.is_idle() {
                self.draw()?;
                (due, drawn) = (None, Instant::now());
            }
            let (idle, written) = (self.session.idle(), self.session.idle());
            let input = tokio::select! {
                biased;
                signal = signals.next() => signal,
                event = std::future::ready(early.clone()), if early.is_some() => Input::Terminal(event),
                event = self.session.event() => Input::Terminal(event),
                () = written, if self.app.draws_question() => Input::Question,
                outcome = self.outcomes.recv() => outcome.map_or(Input::Tick, Input::Outcome),
                picture = next_picture(&mut self.overview) => Input::Picture(picture),
                lock = next_lock(&mut self.followed) => Input::Lock(lock),
                _ = seconds.tick() => Input::Tick,
                () = due_and_idle(due, idle) => continue,
            };
            if matches!(input, Input::Question) {
                self.app.question_is_shown();
                continue;
            }
            let pause = if matches!(input, Input::Terminal(_)) { TYPED } else { SHOWN };
            let earliest = drawn + pause;
            due = Some(due.map_or(earliest, |due| due.min(earliest)));
            match input {
                Input::Terminal(None) => return Ok(None),
                Input::Signal(signal) => return Ok(Some(signal)),
                input => {
                    if self.take(input).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        let (app, theme, now) = (&mut self.app, self.theme, unix_ms_now());
        self.session.draw(|buffer| draw(app, buffer, theme, now))?;
        let focus = self.app.list.on_screen();
        if focus != self.focus {
            self.monitor.focus(focus.clone());
            self.focus = focus;
        }
        Ok(())
    }

    /// Takes what has come in. Returns `true` if the person quits.
    async fn take(&mut self, input: Input) -> io::Result<bool> {
        match input {
            Input::Picture(picture) => self.app.show(picture),
            Input::Lock(lock) => self.app.show_lock(lock),
            Input::Outcome(outcome) => {
                self.pending = self.pending.saturating_sub(1);
                if !matches!(outcome, Outcome::Looked(..)) {
                    self.monitor.refresh();
                }
                self.app.finish(outcome, unix_ms_now());
            }
            Input::Continued => self.session.resume()?,
            Input::Terminal(Some(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                // A terminal that takes the frame at once has shown it, although its thread may not have said so yet.
                if self.app.draws_question() && timeout(WRITING, self.session.idle()).await.is_ok() {
                    self.app.question_is_shown();
                }
                for effect in self.app.press(key, unix_ms_now()) {
                    if self.obey(effect).await? {
                        return Ok(true);
                    }
                }
            }
            Input::Terminal(_) | Input::Signal(_) | Input::Question | Input::Tick => {}
        }
        Ok(false)
    }

    /// Returns `true` if the person quits.
    async fn obey(&mut self, effect: Effect) -> io::Result<bool> {
        match effect {
            Effect::Quit => return Ok(true),
            Effect::Suspend => self.session.suspend().await?,
            Effect::Redraw => self.session.redraw()?,
            Effect::Update => self.monitor.refresh(),
            Effect::Pause => {
                let is_paused = self.app.paused_unix_ms.is_some();
                self.overview = if is_paused { None } else { Some(self.pictures()) };
                if let (false, Some(followed)) = (is_paused, &self.followed) {
                    self.app.show_lock(followed.current());
                }
            }
            Effect::Follow(name) => self.followed = name.map(|name| self.monitor.follow(&name)),
            Effect::Look(target) => self.look(target),
            Effect::Do(dialog) => {
                let (client, name) = (self.monitor.client().clone(), dialog.name);
                self.begin(async move {
                    match dialog.action {
                        Action::Revoke => {
                            let asked = client.revoke_claims(&name, &dialog.claims, &dialog.reason).await;
                            Outcome::Revoked(name, asked)
                        }
                        Action::Break => {
                            let broken = break_claims(&client, name.as_str(), &dialog.claims).await;
                            Outcome::Broken(name, broken)
                        }
                    }
                });
            }
        }
        Ok(false)
    }

    /// Returns the pictures, of which the present one counts as new.
    fn pictures(&self) -> watch::Receiver<Arc<Overview>> {
        let mut pictures = self.monitor.overview();
        pictures.mark_changed();
        pictures
    }

    fn look(&mut self, target: Target) {
        let client = self.monitor.client().clone();
        self.begin(async move {
            let snapshot = client.inspect(&target.name).await;
            Outcome::Looked(target, snapshot)
        });
    }

    fn begin(&mut self, work: impl Future<Output = Outcome> + Send + 'static) {
        let sender = self.sender.clone();
        self.pending += 1;
        tokio::spawn(async move { drop(sender.send(work.await)) });
    }

    /// Waits for the outcomes of what the person has begun, up to a limit.
    async fn last_outcomes(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        let limit = Instant::now() + LAST_OUTCOMES;
        while self.pending > 0 {
            let left = limit.saturating_duration_since(Instant::now());
            let Ok(Some(outcome)) = timeout(left, self.outcomes.recv()).await else {
                messages
                    .push("the store did not answer: what was asked for last may have happened".to_owned());
                break;
            };
            self.pending -= 1;
            if !matches!(outcome, Outcome::Looked(..)) {
                messages.push(report(&outcome).0);
            }
        }
        messages
    }
}

async fn next_picture(pictures: &mut Option<watch::Receiver<Arc<Overview>>>) -> Arc<Overview> {
    if let Some(pictures) = pictures
        && pictures.changed().await.is_ok()
    {
        return pictures.borrow_and_update().clone();
    }
    std::future::pending().await
}

async fn next_lock(followed: &mut Option<Followed>) -> Arc<FollowedLock> {
    match followed {
        Some(followed) => followed.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits until a frame can be drawn; for ever if there is nothing to draw.
async fn due_and_idle(due: Option<Instant>, idle: impl Future<Output = ()>) {
    match due {
        Some(due) => {
            sleep_until(due).await;
            idle.await;
        }
        None => std::future::pending().await,
    }
}

/// The signals that end the view, or continue it.
struct Signals {
    ending: [(i32, Signal); 4],
    continued: Signal,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        let listen = |kind: SignalKind| Ok::<_, io::Error>((kind.as_raw_value(), signal(kind)?));
        let ending = [
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
            listen(SignalKind::interrupt())?,
            listen(SignalKind::quit())?,
        ];
        let continued = signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?;
        Ok(Signals { ending, continued })
    }

    async fn next(&mut self) -> Input {
        let [(term, terms), (hup, hups), (int, ints), (quit, quits)] = &mut self.ending;
        tokio::select! {
            _ = terms.recv() => Input::Signal(*term),
            _ = hups.recv() => Input::Signal(*hup),
            _ = ints.recv() => Input::Signal(*int),
            _ = quits.recv() => Input::Signal(*quit),
            _ = self.continued.recv() => Input::Continued,
        }
    }
}

/// The pause between two frames after a key.
const TYPED: Duration = Duration::from_millis(33);
/// The pause between two frames otherwise.
const SHOWN: Duration = Duration::from_millis(100);
/// The time in which a terminal takes a frame, unless it is blocked.
const WRITING: Duration = Duration::from_millis(20);
/// The time for which the end waits for what is under way.
const LAST_OUTCOMES: Duration = Duration::from_secs(5);
