//! The web console: pages that show the locks of a store, and what to do about them.
//!
//! ```text
//!  pages (overview, locks, lock, waits, doctor, actions, login, events) ─▶ layout, parts ─▶ watcher, follows
//!    ─▶ attention, advice, timeline, graph, plots ─▶ assets, visit, paths, words
//! ```
//!
//! Ground rules: every page is whole without script, and changes nothing when it is read. Names and notes are
//! foreign text: `maud` escapes them, and `visible` spells out what a reader could not see. All readers share
//! one watcher, so the store is asked as often for a thousand of them as for one.

mod actions;
mod advice;
mod aside;
mod assets;
mod attention;
mod doctor;
mod events;
mod follows;
mod graph;
mod layout;
mod lock;
mod locks;
mod login;
mod overview;
mod parts;
mod paths;
mod plots;
mod refusal;
mod timeline;
mod visit;
mod waits;
mod watcher;
mod words;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use leasehold_monitor::{LockRow, Overview};

pub(crate) use refusal::as_page;

use crate::lately::Lately;
use crate::state::State;
use doctor::Doctor;
use follows::Follows;
use layout::Shown;
use watcher::Watcher;

/// The parts that all pages share.
#[derive(Debug)]
struct Console {
    state: Arc<State>,
    watcher: Watcher,
    follows: Follows,
    doctor: Doctor,
    lately: Arc<Lately>,
    /// The store, as people may see it.
    store: String,
}

/// Returns the pages of the console.
pub(crate) fn routes(state: &Arc<State>) -> Router<Arc<State>> {
    Router::new()
        .route("/", get(overview::get))
        .route("/locks", get(locks::get))
        .route("/lock", get(lock::get))
        .route("/lock/revoke", get(actions::ask_revoke).post(actions::revoke))
        .route("/lock/break", get(actions::ask_break).post(actions::break_claims))
        .route("/waits", get(waits::get))
        .route("/doctor", get(doctor::get).post(doctor::again))
        .route("/events", get(events::get))
        .route("/login", get(login::get).post(login::post))
        .route("/logout", post(login::out))
        .route("/theme", get(login::theme))
        .route("/assets/{file}", get(assets::get))
        .with_state(Arc::new(Console::new(state.clone())))
}

impl Console {
    fn new(state: Arc<State>) -> Console {
        let monitor = state.monitor.clone();
        Console {
            watcher: Watcher::start(monitor.clone(), state.lately.clone()),
            follows: Follows::new(monitor),
            doctor: Doctor::new(state.client.clone()),
            lately: state.lately.clone(),
            store: state.config.store.clone(),
            state,
        }
    }

    /// Returns what a page shows of this picture.
    fn shown<'a>(&'a self, overview: &'a Overview) -> Option<Shown<'a>> {
        Some(Shown { overview, store: &self.store })
    }

    /// Returns the part that is left of the lease of a lock, if it is known: that of the holder with the
    /// least.
    fn left(&self, row: &LockRow, now_ms: u64) -> Option<f64> {
        let looked = row.detail.as_ref()?.at_unix_ms;
        let left = row.known_holders().iter().filter_map(|holder| self.watcher.left(holder, looked, now_ms));
        left.reduce(f64::min)
    }
}
