//! The state of the view, and the effect of each key on it. No I/O.
//!
//! Ground rules: what has to happen outside is an [`Effect`]. Nothing is revoked or broken without a question
//! that has named the claims, and only those are asked or ended.

use std::sync::Arc;

use leasehold::backend::ClaimId;
use leasehold::{ClaimInfo, Error, Resource, Snapshot};
use leasehold_monitor::actions::Broken;
use leasehold_monitor::text::visible;
use leasehold_monitor::{FollowedLock, Overview};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::cells::{claimant, counted};
use crate::detail::Detail;
use crate::dialog::{Action, Dialog, Sight};
use crate::frame::Move;
use crate::graph::GraphView;
use crate::list::List;

/// The whole state of the view.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) facts: Facts,
    pub(crate) list: List,
    /// The views on top of the list, the last one on the screen.
    pub(crate) views: Vec<View>,
    pub(crate) dialog: Option<Dialog>,
    /// The question for which the store is asked; the next key ends that.
    wanted: Option<Target>,
    /// `true` while a filter is typed.
    pub(crate) is_typing: bool,
    pub(crate) message: Option<Message>,
    /// The moment of the pause, in milliseconds of the Unix epoch.
    pub(crate) paused_unix_ms: Option<u64>,
}

/// The facts that do not change.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The URL of the store, without a password.
    pub(crate) store: String,
    /// The kind of the store, as its profile names it.
    pub(crate) kind: &'static str,
    /// Only names that begin with this.
    pub(crate) prefix: String,
    pub(crate) read_only: bool,
    /// The reason of a revocation, unless another one is typed.
    pub(crate) reason: String,
    /// The consequences of a break, for a person.
    pub(crate) consequences: &'static str,
}

/// A view on top of the list.
#[derive(Debug)]
pub(crate) enum View {
    Detail(Detail),
    Graph(GraphView),
    Help,
}

/// A text for the person, which disappears after a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) text: String,
    pub(crate) is_bad: bool,
    pub(crate) at_unix_ms: u64,
}

/// Something that has to happen outside.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Quit,
    /// Stop this process, as Ctrl-Z does.
    Suspend,
    /// Draw every cell anew.
    Redraw,
    /// Refresh the picture now.
    Update,
    /// Begin or end to receive pictures.
    Pause,
    /// Follow this lock, or none.
    Follow(Option<Resource>),
    /// Look at a lock, for a question about it.
    Look(Target),
    /// Do what the person has agreed to.
    Do(Dialog),
}

/// The subject of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) action: Action,
    pub(crate) name: Resource,
    /// The only claim that is meant; all holders if it is `None`.
    pub(crate) only: Option<ClaimId>,
}

/// The outcome of an effect.
#[derive(Debug)]
pub(crate) enum Outcome {
    Looked(Target, Result<Snapshot, Error>),
    Revoked(Resource, Result<Vec<ClaimInfo>, Error>),
    Broken(Resource, Broken),
}

impl App {
    pub(crate) fn new(facts: Facts) -> App {
        App {
            facts,
            list: List::default(),
            views: Vec::new(),
            dialog: None,
            wanted: None,
            is_typing: false,
            message: None,
            paused_unix_ms: None,
        }
    }

    /// Shows another picture of the store.
    pub(crate) fn show(&mut self, overview: Arc<Overview>) {
        if self.paused_unix_ms.is_none() {
            self.list.show(overview);
        }
    }

    /// Shows what was seen of the lock that is followed. During a pause, only a view that shows nothing yet does.
    pub(crate) fn show_lock(&mut self, lock: Arc<FollowedLock>) {
        let is_paused = self.paused_unix_ms.is_some();
        for view in &mut self.views {
            if let View::Detail(detail) = view
                && !(is_paused && detail.is_known())
            {
                detail.show(lock.clone());
            }
        }
    }

    /// Reports the outcome of an effect, or asks the question that it was for.
    pub(crate) fn finish(&mut self, outcome: Outcome, now: u64) {
        match outcome {
            // The person has gone on meanwhile: a question must not appear under the next key.
            Outcome::Looked(target, _) if self.wanted.as_ref() != Some(&target) => {}
            Outcome::Looked(target, Ok(snapshot)) => self.ask(target, snapshot, now),
            Outcome::Looked(target, Err(error)) => {
                self.say(format!("{}: {error}", visible(target.name.as_str())), true, now);
            }
            other => {
                let (text, is_bad) = report(&other);
                self.say(text, is_bad, now);
            }
        }
    }

    fn ask(&mut self, target: Target, snapshot: Snapshot, now: u64) {
        let Target { action, name, only } = target;
        let is_meant = |info: &ClaimInfo| only.is_none_or(|id| info.id == id);
        let mut claims: Vec<ClaimInfo> = snapshot.holders.into_iter().filter(is_meant).collect();
        let waits = claims.is_empty() && only.is_some();
        if waits {
            claims.extend(snapshot.waiting.into_iter().filter(is_meant));
        }
        if claims.is_empty() {
            let what = if only.is_some() { "the claim has ended" } else { "it is free" };
            let text =
                format!("{}: {what}, so there is nothing to {}", visible(name.as_str()), action.verb());
            return self.say(text, true, now);
        }
        let (reason, consequences) = (self.facts.reason.clone(), self.facts.consequences);
        let sight = Sight::Hidden;
        self.dialog = Some(Dialog { action, name, claims, waits, reason, consequences, sight });
    }

    /// Returns `true` if a question is part of the next frame, and of none before.
    pub(crate) fn hides_question(&self) -> bool {
        self.dialog.as_ref().is_some_and(|dialog| dialog.sight == Sight::Hidden)
    }

    /// Returns `true` if a question is part of the last frame, and does not count as seen yet.
    pub(crate) fn draws_question(&self) -> bool {
        self.dialog.as_ref().is_some_and(|dialog| dialog.sight == Sight::Drawn)
    }

    /// Counts the question of the last frame as seen: the frame is on the screen.
    pub(crate) fn question_is_shown(&mut self) {
        if let Some(dialog) = self.dialog.as_mut().filter(|dialog| dialog.sight == Sight::Drawn) {
            dialog.sight = Sight::Shown;
        }
    }

    pub(crate) fn say(&mut self, text: String, is_bad: bool, now: u64) {
        self.message = Some(Message { text, is_bad, at_unix_ms: now });
    }

    /// Obeys a key.
    pub(crate) fn press(&mut self, key: KeyEvent, now: u64) -> Vec<Effect> {
        if key.modifiers.contains(KeyModifiers::ALT) {
            // A terminal sends Esc and the next key in the same way, if they arrive together.
            let mut effects = self.press(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE), now);
            let modifiers = key.modifiers.difference(KeyModifiers::ALT);
            effects.extend(self.press(KeyEvent::new(key.code, modifiers), now));
            return effects;
        }
        self.wanted = None;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return vec![Effect::Quit],
            KeyCode::Char('z') if is_control => return vec![Effect::Suspend],
            KeyCode::Char('l') if is_control => return vec![Effect::Redraw],
            _ => {}
        }
        match &self.dialog {
            Some(dialog) if dialog.sight == Sight::Shown => return self.answer(key.code, is_control),
            // The key was meant for what the person saw: it ends the question, as it would have before its arrival.
            Some(_) => self.dialog = None,
            None => {}
        }
        if self.is_typing {
            self.type_filter(key.code, is_control);
            return Vec::new();
        }
        self.message = None;
        match movement(key.code, is_control) {
            Some(how) => self.go(how),
            None if is_control => {}
            None => return self.command(key.code, now),
        }
        Vec::new()
    }

    /// Obeys a key that answers a question.
    fn answer(&mut self, code: KeyCode, is_control: bool) -> Vec<Effect> {
        let Some(mut dialog) = self.dialog.take() else { return Vec::new() };
        match (dialog.action, code) {
            (Action::Revoke, KeyCode::Enter) => return vec![Effect::Do(dialog)],
            (Action::Break, KeyCode::Char('y')) if !is_control => return vec![Effect::Do(dialog)],
            (_, KeyCode::Esc) | (Action::Break, KeyCode::Char('n' | 'q') | KeyCode::Enter) => {
                return Vec::new();
            }
            (Action::Revoke, KeyCode::Char('u')) if is_control => dialog.reason.clear(),
            (_, KeyCode::Char(_)) if is_control => {}
            (Action::Revoke, KeyCode::Char(c)) if dialog.reason.len() + c.len_utf8() <= REASON_MAX => {
                dialog.reason.push(c);
            }
            (Action::Revoke, KeyCode::Backspace) => drop(dialog.reason.pop()),
            _ => {}
        }
        self.dialog = Some(dialog);
        Vec::new()
    }

    fn type_filter(&mut self, code: KeyCode, is_control: bool) {
        let mut text = self.list.filter.clone();
        match code {
            KeyCode::Enter => return self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                text.clear();
            }
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char('u') if is_control => text.clear(),
            KeyCode::Char(c) if !is_control && text.len() < FILTER_MAX => text.push(c),
            KeyCode::Down => self.list.go(Move::Down),
            KeyCode::Up => self.list.go(Move::Up),
            _ => {}
        }
        if text != self.list.filter {
            self.list.filter_by(text);
        }
    }

    fn go(&mut self, how: Move) {
        match self.views.last_mut() {
            None => self.list.go(how),
            Some(View::Detail(detail)) => detail.go(how),
            Some(View::Graph(graph)) => graph.go(how, self.list.overview()),
            Some(View::Help) => {}
        }
    }

    fn command(&mut self, code: KeyCode, now: u64) -> Vec<Effect> {
        match code {
            KeyCode::Char('q') => return vec![Effect::Quit],
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => return self.back(),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.open(View::Help),
            KeyCode::Char('w') => self.open(View::Graph(GraphView::default())),
            KeyCode::Char('u') | KeyCode::F(5) => return vec![Effect::Update],
            KeyCode::Char('p') => return self.pause(now),
            KeyCode::Enter | KeyCode::Right => return self.enter(),
            KeyCode::Char('r') => return self.act(Action::Revoke, now),
            KeyCode::Char('b') => return self.act(Action::Break, now),
            KeyCode::Char(c) if self.views.is_empty() => self.arrange(c),
            _ => {}
        }
        Vec::new()
    }

    /// Obeys a key that changes the order or the choice of the list.
    fn arrange(&mut self, key: char) {
        let mut turned = self.list.sort;
        match key {
            '/' => self.is_typing = true,
            's' => self.list.sort_next(false),
            'S' => self.list.sort_next(true),
            'v' => {
                turned.reversed = !turned.reversed;
                self.list.sort_by(turned);
            }
            _ => {}
        }
    }

    /// Opens a view, unless it is open already.
    fn open(&mut self, view: View) {
        let is_same = |open: &View| std::mem::discriminant(open) == std::mem::discriminant(&view);
        if !self.views.last().is_some_and(is_same) {
            self.views.push(view);
        }
    }

    fn enter(&mut self) -> Vec<Effect> {
        let name = match self.views.last() {
            None => self.list.selected().map(|row| row.name.clone()),
            Some(View::Graph(graph)) => graph.selected(self.list.overview()),
            Some(View::Detail(_) | View::Help) => None,
        };
        let Some(name) = name else { return Vec::new() };
        self.list.select(&name);
        let known = self.list.selected().filter(|row| row.name == name).and_then(|row| row.detail.clone());
        self.views.push(View::Detail(Detail::of(name.clone(), known)));
        vec![Effect::Follow(Some(name))]
    }

    fn back(&mut self) -> Vec<Effect> {
        let Some(closed) = self.views.pop() else {
            self.list.filter_by(String::new());
            return Vec::new();
        };
        if !matches!(closed, View::Detail(_)) {
            return Vec::new();
        }
        // One that is below, perhaps under another view, was not followed meanwhile.
        let below = self.views.iter().rev().find_map(|view| match view {
            View::Detail(detail) => Some(detail.name.clone()),
            View::Graph(_) | View::Help => None,
        });
        vec![Effect::Follow(below)]
    }

    fn pause(&mut self, now: u64) -> Vec<Effect> {
        self.paused_unix_ms = if self.paused_unix_ms.is_some() { None } else { Some(now) };
        vec![Effect::Pause]
    }

    /// Begins to revoke or break the lock or the claim under the cursor.
    fn act(&mut self, action: Action, now: u64) -> Vec<Effect> {
        if self.facts.read_only {
            self.say("this view only looks: it was started with --read-only".to_owned(), true, now);
            return Vec::new();
        }
        let target = match self.views.last() {
            None => self.list.selected().map(|row| (row.name.clone(), None)),
            // A revocation is about all holders, and a break about the claim under the cursor.
            Some(View::Detail(detail)) if action == Action::Revoke => Some((detail.name.clone(), None)),
            Some(View::Detail(detail)) => match detail.selected() {
                Some(info) => Some((detail.name.clone(), Some(info.id))),
                None => {
                    self.say("put the cursor on a claim to break it".to_owned(), true, now);
                    None
                }
            },
            Some(View::Graph(graph)) => graph.selected(self.list.overview()).map(|name| (name, None)),
            Some(View::Help) => None,
        };
        self.wanted = target.map(|(name, only)| Target { action, name, only });
        self.wanted.clone().map(Effect::Look).into_iter().collect()
    }
}

impl Action {
    fn verb(self) -> &'static str {
        match self {
            Action::Revoke => "revoke",
            Action::Break => "break",
        }
    }
}

/// Returns the movement of a key.
fn movement(code: KeyCode, is_control: bool) -> Option<Move> {
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') if !is_control => Move::Up,
        KeyCode::Down | KeyCode::Char('j') if !is_control => Move::Down,
        KeyCode::PageUp => Move::PageUp,
        KeyCode::Char('b') if is_control => Move::PageUp,
        KeyCode::PageDown => Move::PageDown,
        KeyCode::Char('f') if is_control => Move::PageDown,
        KeyCode::Char(' ') if !is_control => Move::PageDown,
        KeyCode::Home => Move::Home,
        KeyCode::Char('g') if !is_control => Move::Home,
        KeyCode::End => Move::End,
        KeyCode::Char('G') if !is_control => Move::End,
        _ => return None,
    })
}

/// Says what has come of an effect, and whether that is bad.
pub(crate) fn report(outcome: &Outcome) -> (String, bool) {
    let shown = |name: &Resource| visible(name.as_str());
    match outcome {
        Outcome::Looked(target, Ok(_)) => (format!("{}: nothing was done", shown(&target.name)), false),
        Outcome::Looked(Target { name, .. }, Err(error)) | Outcome::Revoked(name, Err(error)) => {
            (format!("{}: {error}", shown(name)), true)
        }
        Outcome::Revoked(name, Ok(asked)) if asked.is_empty() => {
            (format!("{}: released in the meantime, no holder was asked", shown(name)), true)
        }
        Outcome::Revoked(name, Ok(asked)) => (format!("{}: asked {}", shown(name), listed(asked)), false),
        Outcome::Broken(name, broken) => {
            let also = match broken.also_released.len() {
                0 => String::new(),
                count => format!("; {} ended with the connection", counted(count, "other lock")),
            };
            match (&broken.failure, broken.claims.len()) {
                (Some(error), count) => {
                    (format!("{}: {error}; {} broken before", shown(name), counted(count, "claim")), true)
                }
                (None, 0) => (format!("{}: released in the meantime, nothing was broken", shown(name)), true),
                (None, _) => (format!("{}: broken: {}{also}", shown(name), listed(&broken.claims)), false),
            }
        }
    }
}

/// Names the first claim, and counts the others.
fn listed(claims: &[ClaimInfo]) -> String {
    let first = claims.first().map(claimant).unwrap_or_default();
    match claims.len() {
        0 | 1 => first,
        count => format!("{first} and {}", counted(count - 1, "other")),
    }
}

/// The longest reason that the library takes, in bytes.
const REASON_MAX: usize = 256;
const FILTER_MAX: usize = 128;

#[cfg(test)]
mod tests;
