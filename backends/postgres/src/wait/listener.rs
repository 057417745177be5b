//! Listener for the calls that releases of others make, on a connection of its own, as long as a waiter
//! listens.
//!
//! Ground rules: waiters know when nothing can be heard, and poll. After every gap all look once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::cell::Notifier;
use leasehold_core::Failure;
use tokio::task::JoinHandle;
use tokio_postgres::AsyncMessage;

use crate::config::PostgresConfig;
use crate::error::Refusal;
use crate::net::dial::{Link, Unasked};
use crate::wait::calls::read_call;

/// The ear of one client. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    bells: Notifier,
    task: JoinHandle<()>,
}

impl Listener {
    pub(crate) fn start(config: Arc<PostgresConfig>, channel: String) -> Listener {
        let bells = Notifier::new();
        let task = leasehold_machine::spawn(listen(config, channel, bells.clone()));
        Listener { bells, task }
    }

    pub(crate) fn bells(&self) -> &Notifier {
        &self.bells
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connects whenever a waiter listens, again and again.
async fn listen(config: Arc<PostgresConfig>, channel: String, bells: Notifier) {
    let mut failures = 0u32;
    loop {
        bells.wanted().await;
        match subscribe(&config, &channel).await {
            Ok((link, unasked)) => {
                failures = 0;
                bells.begin_hearing();
                hear(&link, unasked, &bells).await;
                bells.stop_hearing();
            }
            Err(failure) => {
                tracing::debug!(%failure, "notifications cannot be heard");
                failures = failures.saturating_add(1);
            }
        }
        let longest = FIRST_PAUSE.saturating_mul(1 << failures.min(6)).min(LAST_PAUSE);
        // Without randomness the pause is the whole one.
        let part = getrandom::u32().unwrap_or(u32::MAX);
        tokio::time::sleep(longest.mul_f64(0.5 + f64::from(part) / f64::from(u32::MAX) / 2.0)).await;
    }
}

async fn subscribe(config: &PostgresConfig, channel: &str) -> Result<(Link, Unasked), Failure> {
    let (link, unasked) = Link::dial_listening(config).await?;
    // The channel's name is a word and a number.
    link.run(&format!("LISTEN {channel}")).await.map_err(Refusal::into_failure)?;
    Ok((link, unasked))
}

/// Passes on what comes, until the connection ends or nobody has listened for a while.
async fn hear(link: &Link, mut unasked: Unasked, bells: &Notifier) {
    // A dead connection shows by a question without an answer. Messages are read meanwhile: the answer comes
    // behind them.
    let mut dead = pin!(async {
        loop {
            if link.run("SELECT 1").await.is_err() {
                return;
            }
            tokio::time::sleep(HEARTBEAT).await;
        }
    });
    loop {
        let quiet = async {
            bells.unwanted().await;
            tokio::time::sleep(LINGER).await;
        };
        tokio::select! {
            message = unasked.recv() => match message {
                Some(AsyncMessage::Notification(word)) => {
                    if let Some((resource, call)) = read_call(word.payload()) {
                        bells.ring(&resource, &call);
                    }
                }
                Some(_) => {}
                None => return,
            },
            () = &mut dead => return,
            () = quiet => return,
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(3);
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The time for which the connection is kept for the next listener.
const LINGER: Duration = Duration::from_secs(10);
