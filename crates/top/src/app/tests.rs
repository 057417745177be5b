//! The view without a terminal: keys go in, and the cells of the screen come out.

use std::sync::Arc;
use std::time::Duration;

use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, Guard, Note, Resource, TokioClock};
use leasehold_monitor::text::unix_ms_now;
use leasehold_monitor::{Monitor, Options};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use super::{App, Effect, Facts, Outcome, View};
use crate::cells::clock;
use crate::detail::Detail;
use crate::dialog::Action;
use crate::screen::draw;
use crate::theme::Theme;

const COLOURED: Theme = Theme { is_coloured: true };

/// A memory store in virtual time.
fn store() -> Client {
    let memory = MemoryBackend::with_clock(Arc::new(TokioClock::new()));
    Client::builder().clock(Arc::new(TokioClock::new())).over(Arc::new(memory)).unwrap()
}

async fn held(locks: &Client, name: &str, note: &str) -> Guard {
    locks.mutex(name).ttl(Duration::from_secs(3600)).note(Note::new(note).unwrap()).lock().await.unwrap()
}

fn app(read_only: bool) -> App {
    App::new(Facts {
        store: "mem:test".to_owned(),
        kind: "mem",
        prefix: String::new(),
        read_only,
        reason: "asked by ann".to_owned(),
        consequences: "The holder notices it later.",
    })
}

/// An app that shows the locks of a store.
async fn showing(locks: &Client) -> App {
    let monitor = Monitor::start(locks.clone(), Options::default());
    let mut app = app(false);
    app.show(monitor.fresh().await);
    app
}

/// Draws a screen of this size.
fn drawn(app: &mut App, width: u16, height: u16) -> Buffer {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw(app, &mut buffer, COLOURED, unix_ms_now());
    app.question_is_shown();
    buffer
}

/// Draws a screen of 80 columns and 24 lines as it is at this time.
fn drawn_at(app: &mut App, theme: Theme, now_ms: u64) -> Buffer {
    let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
    draw(app, &mut buffer, theme, now_ms);
    buffer
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    let line = |y: u16| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..area.height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn text(app: &mut App) -> String {
    lines(&drawn(app, 80, 24)).join("\n")
}

fn press(app: &mut App, code: KeyCode) -> Vec<Effect> {
    app.press(KeyEvent::new(code, KeyModifiers::NONE), unix_ms_now())
}

fn type_in(app: &mut App, text: &str) {
    for c in text.chars() {
        press(app, KeyCode::Char(c));
    }
}

/// The name of the lock under the cursor, as the screen shows it.
fn selected(app: &mut App) -> String {
    let screen = text(app);
    let line = screen.lines().find(|line| line.starts_with('>')).expect("a cursor");
    line.trim_start_matches(['>', ' ', '!']).split(' ').next().unwrap().to_owned()
}

/// Carries out a look, as the loop does, and shows what comes of it.
async fn look(app: &mut App, locks: &Client, effects: Vec<Effect>) {
    arrive(app, locks, effects).await;
    drawn(app, 80, 24);
}

/// Carries out a look, of which nothing is on the screen yet.
async fn arrive(app: &mut App, locks: &Client, effects: Vec<Effect>) {
    let [Effect::Look(target)] = effects.as_slice() else { panic!("no look: {effects:?}") };
    let snapshot = locks.inspect(&target.name).await;
    app.finish(Outcome::Looked(target.clone(), snapshot), unix_ms_now());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_locks_are_paged_sorted_and_filtered() {
    let locks = store();
    let mut guards = Vec::new();
    for number in 0..10_000 {
        guards.push(held(&locks, &format!("lock/{number:05}"), &format!("holder {number}")).await);
    }
    let mut app = showing(&locks).await;
    let screen = text(&mut app);
    assert!(screen.contains("10,000 locks, 0 with a queue"), "{screen}");
    assert!(screen.contains("1-20 of 10,000"), "{screen}");
    assert_eq!(selected(&mut app), "lock/00000");
    press(&mut app, KeyCode::PageDown);
    assert_eq!(selected(&mut app), "lock/00019");
    press(&mut app, KeyCode::End);
    assert_eq!(selected(&mut app), "lock/09999");
    assert!(text(&mut app).contains("9,981-10,000 of 10,000"));
    type_in(&mut app, "/lock/0999");
    let screen = text(&mut app);
    assert!(screen.contains("Filter: lock/0999_"), "{screen}");
    press(&mut app, KeyCode::Enter);
    assert!(text(&mut app).contains("1-10 of 10 found in 10,000"), "{}", text(&mut app));
    type_in(&mut app, "ssv");
    assert!(text(&mut app).contains("LOCK^"), "{}", text(&mut app));
    assert_eq!(selected(&mut app), "lock/09999");
    press(&mut app, KeyCode::Esc);
    assert!(text(&mut app).contains("1-20 of 10,000"), "{}", text(&mut app));
    press(&mut app, KeyCode::Char('s'));
    let screen = text(&mut app);
    assert!(screen.contains("sorted by held (") && screen.contains("/10,000 seen)"), "{screen}");
}

#[tokio::test(start_paused = true)]
async fn cursor_stays_on_its_lock_when_others_come_and_go() {
    let locks = store();
    let monitor = Monitor::start(locks.clone(), Options::default());
    let (first, second) = (held(&locks, "b", "").await, held(&locks, "d", "").await);
    let mut app = app(false);
    app.show(monitor.fresh().await);
    press(&mut app, KeyCode::Down);
    assert_eq!(selected(&mut app), "d");
    let others = (held(&locks, "a", "").await, held(&locks, "c", "").await);
    tokio::time::sleep(Duration::from_secs(3)).await;
    app.show(monitor.fresh().await);
    assert_eq!(selected(&mut app), "d");
    second.release().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    app.show(monitor.fresh().await);
    assert_eq!(selected(&mut app), "c", "the nearest that is left");
    drop((first, others));
}

#[tokio::test(start_paused = true)]
async fn break_names_the_claims_and_ends_only_those() {
    let locks = store();
    let guard = held(&locks, "job", "ann at db1").await;
    let mut app = showing(&locks).await;
    let effects = press(&mut app, KeyCode::Char('b'));
    look(&mut app, &locks, effects).await;
    let screen = text(&mut app);
    for part in [
        "Break job: end 1 claim by force?",
        "ann at db1",
        "fence 0000",
        "The holder notices it later.",
        "y break it",
    ] {
        assert!(screen.contains(part), "no {part:?} in\n{screen}");
    }
    for refusal in [KeyCode::Esc, KeyCode::Char('n'), KeyCode::Enter] {
        assert!(press(&mut app, refusal).is_empty() && app.dialog.is_none());
        let effects = press(&mut app, KeyCode::Char('b'));
        look(&mut app, &locks, effects).await;
    }
    assert!(press(&mut app, KeyCode::Char('x')).is_empty() && app.dialog.is_some(), "no other key answers");
    let shown = locks.inspect("job").await.unwrap().holders;
    let effects = press(&mut app, KeyCode::Char('y'));
    let [Effect::Do(dialog)] = effects.as_slice() else { panic!("{effects:?}") };
    // Their age is counted back from the moment of each look, so it differs by a millisecond at times.
    let ids = |claims: &[leasehold::ClaimInfo]| claims.iter().map(|claim| claim.id).collect::<Vec<_>>();
    assert_eq!((dialog.action, ids(&dialog.claims)), (Action::Break, ids(&shown)));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn revoke_takes_a_reason_and_names_the_holders() {
    let locks = store();
    let guard = held(&locks, "job", "ann at db1").await;
    let mut app = showing(&locks).await;
    let effects = press(&mut app, KeyCode::Char('r'));
    look(&mut app, &locks, effects).await;
    let screen = text(&mut app);
    for part in
        ["Ask the 1 holder of job to release it?", "ann at db1", "Reason: asked by ann_", "Enter ask them"]
    {
        assert!(screen.contains(part), "no {part:?} in\n{screen}");
    }
    type_in(&mut app, ": q\x07");
    assert!(text(&mut app).contains("Reason: asked by ann: q\\u{7}_"), "{}", text(&mut app));
    press(&mut app, KeyCode::Backspace);
    let effects = press(&mut app, KeyCode::Enter);
    let [Effect::Do(dialog)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!((dialog.action, dialog.reason.as_str()), (Action::Revoke, "asked by ann: q"));
    // Esc and a key that arrive together look like the key with Alt.
    let effects = press(&mut app, KeyCode::Char('r'));
    look(&mut app, &locks, effects).await;
    let effects = app.press(KeyEvent::new(KeyCode::Char('b'), KeyModifiers::ALT), unix_ms_now());
    assert!(app.dialog.is_none() && matches!(effects.as_slice(), [Effect::Look(_)]), "{effects:?}");
    // A free lock has nobody to ask.
    guard.release().await.unwrap();
    let effects = press(&mut app, KeyCode::Char('r'));
    look(&mut app, &locks, effects).await;
    assert!(text(&mut app).contains("job: it is free, so there is nothing to revoke"));
}

/// The store may be slow: what is typed meanwhile must not answer a question that nobody has read.
#[tokio::test(start_paused = true)]
async fn question_does_not_appear_under_a_later_key() {
    let locks = store();
    let _guard = held(&locks, "job", "ann").await;
    let mut app = showing(&locks).await;
    let effects = press(&mut app, KeyCode::Char('b'));
    press(&mut app, KeyCode::Char('/'));
    look(&mut app, &locks, effects).await;
    assert!(app.dialog.is_none());
    type_in(&mut app, "y");
    assert!(text(&mut app).contains("y"));
}

/// A key that was on its way when the question came was meant for the screen from before.
#[tokio::test(start_paused = true)]
async fn key_before_the_frame_of_a_question_does_not_answer_it() {
    let locks = store();
    let _guard = held(&locks, "job", "ann").await;
    let mut app = showing(&locks).await;
    for (ask, answer) in [('b', KeyCode::Char('y')), ('r', KeyCode::Enter)] {
        for is_drawn in [false, true] {
            let effects = press(&mut app, KeyCode::Char(ask));
            arrive(&mut app, &locks, effects).await;
            if is_drawn {
                // The frame is made, and the terminal has not taken it.
                drawn_at(&mut app, COLOURED, unix_ms_now());
                assert!(app.draws_question());
            }
            let effects = press(&mut app, answer);
            assert!(!matches!(effects.as_slice(), [Effect::Do(_)]), "{effects:?}");
            assert!(app.dialog.is_none());
            press(&mut app, KeyCode::Esc);
        }
        let effects = press(&mut app, KeyCode::Char(ask));
        look(&mut app, &locks, effects).await;
        assert!(matches!(press(&mut app, answer).as_slice(), [Effect::Do(_)]));
    }
    // A terminal that has become too small shows no question.
    let effects = press(&mut app, KeyCode::Char('b'));
    look(&mut app, &locks, effects).await;
    drawn(&mut app, 79, 24);
    assert!(press(&mut app, KeyCode::Char('y')).is_empty());
}

#[tokio::test(start_paused = true)]
async fn read_only_view_asks_no_question() {
    let locks = store();
    let _guard = held(&locks, "job", "ann").await;
    let monitor = Monitor::start(locks, Options::default());
    let mut app = app(true);
    app.show(monitor.fresh().await);
    for key in ['r', 'b'] {
        assert!(press(&mut app, KeyCode::Char(key)).is_empty());
        let screen = text(&mut app);
        assert!(
            screen.contains("READ-ONLY") && screen.contains("it was started with --read-only"),
            "{screen}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn hostile_names_and_notes_are_spelled_out() {
    let locks = store();
    let name = "\u{202e}evil\u{200b}";
    let note = "\x1b[2J\x1b]0;owned\x07\r\n\u{9b}31m漢字";
    let _guard = held(&locks, name, note).await;
    let mut app = showing(&locks).await;
    let monitor = Monitor::start(locks.clone(), Options::default());
    let followed = monitor.follow(&Resource::new(name).unwrap());
    let list = drawn(&mut app, 200, 24);
    press(&mut app, KeyCode::Enter);
    tokio::time::sleep(Duration::from_secs(1)).await;
    app.show_lock(followed.current());
    let detail = drawn(&mut app, 200, 24);
    let effects = press(&mut app, KeyCode::Char('b'));
    look(&mut app, &locks, effects).await;
    let dialog = drawn(&mut app, 200, 24);
    for screen in [list, detail, dialog] {
        let is_clean = |c: char| !c.is_control() && c != '\u{202e}' && c != '\u{200b}';
        assert!(screen.content().iter().all(|cell| cell.symbol().chars().all(is_clean)));
        let text = lines(&screen).join("\n");
        assert!(text.contains("\\u{202e}evil\\u{200b}") && text.contains("\\u{1b}[2J"), "{text}");
        assert!(text.contains("漢"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_screen_of_any_size_is_drawn() {
    let locks = store();
    let _guards = [held(&locks, "a", "ann").await, held(&locks, "b", &"long ".repeat(200)).await];
    let mut app = showing(&locks).await;
    let monitor = Monitor::start(locks.clone(), Options::default());
    let followed = monitor.follow(&Resource::new("b").unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    for view in ['\0', '?', 'w', '\n'] {
        match view {
            '\0' => {}
            '\n' => drop(press(&mut app, KeyCode::Enter)),
            key => drop(press(&mut app, KeyCode::Char(key))),
        }
        app.show_lock(followed.current());
        for (width, height) in
            [(1, 1), (20, 5), (79, 24), (80, 23), (80, 24), (81, 25), (132, 50), (300, 100)]
        {
            drawn(&mut app, width, height);
        }
        press(&mut app, KeyCode::Esc);
        press(&mut app, KeyCode::Down);
    }
    let small = lines(&drawn(&mut app, 79, 24)).join(" ");
    assert!(small.contains("has 79 columns and 24 lines") && small.contains("needs 80 and 24"), "{small}");
    let wide = lines(&drawn(&mut app, 120, 24)).join("\n");
    assert!(wide.contains("WAITED"), "{wide}");
}

#[tokio::test(start_paused = true)]
async fn pause_keeps_the_picture_and_its_ages() {
    let locks = store();
    let monitor = Monitor::start(locks.clone(), Options::default());
    let _guard = held(&locks, "a", "ann").await;
    let mut app = app(false);
    app.show(monitor.fresh().await);
    assert!(matches!(press(&mut app, KeyCode::Char('p')).as_slice(), [Effect::Pause]));
    let before = text(&mut app);
    assert!(before.contains("PAUSED"), "{before}");
    let _other = held(&locks, "b", "ben").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    app.show(monitor.fresh().await);
    let later = drawn_at(&mut app, COLOURED, unix_ms_now() + 60_000);
    assert_eq!(lines(&later).join("\n"), before);
    press(&mut app, KeyCode::Char('p'));
    app.show(monitor.fresh().await);
    assert!(text(&mut app).contains("ben"));
}

#[tokio::test(start_paused = true)]
async fn lock_that_is_opened_during_a_pause_is_shown_as_it_is_then() {
    let locks = store();
    let monitor = Monitor::start(locks.clone(), Options::default());
    let guard = held(&locks, "a", "ann").await;
    let name = Resource::new("a").unwrap();
    let mut app = app(false);
    press(&mut app, KeyCode::Char('p'));
    // As from the list, before the lock was looked at.
    app.views.push(View::Detail(Detail::of(name.clone(), None)));
    let mut followed = monitor.follow(&name);
    assert!(text(&mut app).contains("Asking the store ..."));
    app.show_lock(followed.changed().await);
    let paused = text(&mut app);
    assert!(paused.contains("PAUSED") && paused.contains("a: held") && paused.contains("ann"), "{paused}");
    guard.release().await.unwrap();
    while followed.changed().await.snapshot.as_ref().is_none_or(|seen| !seen.holders.is_empty()) {}
    app.show_lock(followed.current());
    assert_eq!(text(&mut app), paused, "the pause keeps the first look");
}

#[tokio::test(start_paused = true)]
async fn outage_of_a_lock_says_when_that_lock_was_seen_last() {
    let memory = MemoryBackend::with_clock(Arc::new(TokioClock::new()));
    let fault = Arc::new(Fault::over(Arc::new(memory)));
    let locks = Client::builder().clock(Arc::new(TokioClock::new())).over(fault.clone()).unwrap();
    let monitor = Monitor::start(locks, Options::default());
    let name = Resource::new("a").unwrap();
    let mut followed = monitor.follow(&name);
    followed.changed().await;
    fault.set(Verb::Inspect, Mode::Refuse);
    while followed.changed().await.outage.is_none() {}
    // There is no picture of the store at all.
    let mut app = app(false);
    app.views.push(View::Detail(Detail::of(name, None)));
    app.show_lock(followed.current());
    let seen = format!("last seen {}", clock(followed.current().at_unix_ms.unwrap()));
    let screen = text(&mut app);
    assert!(screen.contains("NO ANSWER") && screen.contains(&seen), "no {seen:?} in\n{screen}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_by_a_colour_alone() {
    let locks = store();
    let _guard = held(&locks, "a", "ann").await;
    let mut app = showing(&locks).await;
    // One time for both: the time that is left differs from one second to the next.
    let now_ms = unix_ms_now();
    let coloured = drawn_at(&mut app, COLOURED, now_ms);
    let plain = drawn_at(&mut app, Theme { is_coloured: false }, now_ms);
    assert_eq!(lines(&plain), lines(&coloured));
    let is_plain = |cell: &ratatui::buffer::Cell| cell.fg == Color::Reset && cell.bg == Color::Reset;
    assert!(plain.content().iter().all(is_plain));
    assert!(!coloured.content().iter().all(is_plain));
    // The cursor is a character, and its line is reversed.
    let row = (0..24).find(|y| plain[(0, *y)].symbol() == ">").unwrap();
    assert!(plain[(5, row)].modifier.contains(Modifier::REVERSED));
}

#[tokio::test(start_paused = true)]
async fn one_claim_of_a_semaphore_can_be_broken() {
    let locks = store();
    let semaphore = |note: &str| locks.semaphore("pool", 2).note(Note::new(note).unwrap());
    let guards = (semaphore("ann").acquire().await.unwrap(), semaphore("ben").acquire().await.unwrap());
    let mut app = showing(&locks).await;
    let monitor = Monitor::start(locks.clone(), Options::default());
    let followed = monitor.follow(&Resource::new("pool").unwrap());
    let effects = press(&mut app, KeyCode::Enter);
    assert!(matches!(effects.as_slice(), [Effect::Follow(Some(name))] if name.as_str() == "pool"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    app.show_lock(followed.current());
    let screen = text(&mut app);
    for part in
        ["pool: held by 2", "2 HOLDERS", "1/2", "ann", "ben", "QUEUE OF 0", "No claim waits.", "HELD BEFORE"]
    {
        assert!(screen.contains(part), "no {part:?} in\n{screen}");
    }
    press(&mut app, KeyCode::Down);
    let effects = press(&mut app, KeyCode::Char('b'));
    look(&mut app, &locks, effects).await;
    let dialog = app.dialog.clone().unwrap();
    let notes: Vec<&str> = dialog.claims.iter().map(|info| info.note.as_str()).collect();
    assert_eq!(notes, ["ben"]);
    assert!(matches!(press(&mut app, KeyCode::Char('n')).as_slice(), []));
    // The cursor stays on its claim when the one above ends.
    drop(guards.0);
    tokio::time::sleep(Duration::from_secs(60)).await;
    app.show_lock(followed.current());
    let effects = press(&mut app, KeyCode::Char('b'));
    let ben = dialog.claims[0].id;
    assert!(matches!(effects.as_slice(), [Effect::Look(target)] if target.only == Some(ben)));
    // A break on a heading, or on a claim that has ended, ends no holder.
    for key in [KeyCode::Home, KeyCode::End] {
        press(&mut app, key);
        assert!(matches!(press(&mut app, KeyCode::Char('b')).as_slice(), []), "after {key:?}");
        let screen = text(&mut app);
        assert!(screen.contains("put the cursor on a claim"), "after {key:?}:\n{screen}");
    }
    assert!(matches!(press(&mut app, KeyCode::Esc).as_slice(), [Effect::Follow(None)]));
    drop(guards.1);
}

#[tokio::test(start_paused = true)]
async fn lock_below_a_closed_view_is_followed_again() {
    let locks = store();
    let guards = (held(&locks, "a", "ann").await, held(&locks, "b", "ben").await);
    let waiter = locks.mutex("b");
    let waiting = tokio::spawn(async move { waiter.lock().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut app = showing(&locks).await;
    let followed = |effects: Vec<Effect>| match effects.as_slice() {
        [Effect::Follow(name)] => name.as_ref().map(|name| name.as_str().to_owned()),
        other => panic!("{other:?}"),
    };
    press(&mut app, KeyCode::End);
    assert_eq!(followed(press(&mut app, KeyCode::Enter)).as_deref(), Some("a"));
    press(&mut app, KeyCode::Char('w'));
    press(&mut app, KeyCode::End);
    assert_eq!(followed(press(&mut app, KeyCode::Enter)).as_deref(), Some("b"));
    assert_eq!(followed(press(&mut app, KeyCode::Esc)).as_deref(), Some("a"), "it is below the graph");
    assert!(press(&mut app, KeyCode::Esc).is_empty());
    assert_eq!(followed(press(&mut app, KeyCode::Esc)), None, "the list follows nothing");
    waiting.abort();
    drop(guards);
}
