//! Listener for the calls that releases of others make, on a connection of its own, as long as a waiter
//! listens.
//!
//! Ground rules: waiters know when no notification can arrive, and poll. After every gap all check once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::cell::Notifier;
use leasehold_backend::random;
use leasehold_core::{Backoff, Failure};
use tokio::task::JoinHandle;
use tokio_postgres::AsyncMessage;

use crate::config::PostgresConfig;
use crate::error::Refusal;
use crate::net::dial::{Link, ServerMessages};
use crate::wait::calls::decode_call;

/// The listener of one client. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    notifier: Notifier,
    task: JoinHandle<()>,
}

impl Listener {
    pub(crate) fn start(config: Arc<PostgresConfig>, channel: String) -> Listener {
        let notifier = Notifier::new();
        let task = leasehold_machine::spawn(listen(config, channel, notifier.clone()));
        Listener { notifier, task }
    }

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connects whenever a waiter listens, again and again.
async fn listen(config: Arc<PostgresConfig>, channel: String, notifier: Notifier) {
    let mut outage = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
    loop {
        notifier.until_subscribed().await;
        match subscribe(&config, &channel).await {
            Ok((link, messages)) => {
                outage.reset();
                notifier.mark_connected();
                forward(&link, messages, &notifier).await;
                notifier.mark_disconnected();
            }
            Err(failure) => {
                tracing::debug!(%failure, "notifications cannot be heard");
            }
        }
        tokio::time::sleep(outage.failed(random::chance())).await;
    }
}

async fn subscribe(config: &PostgresConfig, channel: &str) -> Result<(Link, ServerMessages), Failure> {
    let (link, messages) = Link::dial_listening(config).await?;
    // The channel's name is a word and a number.
    link.run(&format!("LISTEN {channel}")).await.map_err(Refusal::into_failure)?;
    Ok((link, messages))
}

/// Passes notifications on, until the connection ends or there has been no subscription for a while.
async fn forward(link: &Link, mut messages: ServerMessages, notifier: &Notifier) {
    // A dead connection shows by a request without an answer. Messages are read meanwhile: the answer arrives
    // after them.
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
            notifier.until_unsubscribed().await;
            tokio::time::sleep(LINGER).await;
        };
        tokio::select! {
            message = messages.recv() => match message {
                Some(AsyncMessage::Notification(notification)) => {
                    match decode_call(notification.payload()) {
                        Some((resource, call)) => notifier.notify(&resource, &call),
                        // It may have come from any account of the database. A waiter looks again by itself.
                        None => tracing::debug!("a notification that is not a call was ignored"),
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
