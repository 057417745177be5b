//! Listens to one Sentinel: the first one that announces a new primary ends the old view.
//!
//! A message is a hint only. It has an address and no epoch, and may be late; so it ends the
//! view, and nothing more.

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::url::Host;
use leasehold_core::Failure;

use super::Shared;
use crate::net::outage::Outage;
use crate::net::pubsub_conn::{PubSubConn, PubSubEvent};
use crate::net::timer;
use crate::protocol::channel_scope::ChannelScope;

/// Listens to the Sentinel of this number for as long as the backend lives.
pub(super) async fn run(shared: Arc<Shared>, number: usize) {
    let mut outage = Outage::new(FIRST_PAUSE, LAST_PAUSE);
    loop {
        if listen(&shared, number).await.is_ok() {
            outage.worked();
        }
        outage.failed(timer::now());
        timer::at(outage.opens_at()).await;
    }
}

/// Pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// The interval at which a silent connection is pinged.
const PING: Duration = Duration::from_secs(10);

const SWITCHED: &str = "+switch-master";

/// Listens until the connection breaks. Returns an error where it was never established.
async fn listen(shared: &Shared, number: usize) -> Result<(), Failure> {
    let Some(sentinel) = shared.sentinels.get(number) else { return std::future::pending().await };
    let limit = shared.config.timeout;
    let (mut conn, _) = PubSubConn::open(&sentinel.dialer, ChannelScope::Everywhere).await?;
    let failed = |reason: String| Failure::unavailable(format!("{}: {reason}", sentinel.host));
    conn.subscribe(vec![SWITCHED.to_owned()]).await.map_err(|error| failed(error.to_string()))?;
    match tokio::time::timeout(limit, conn.recv()).await {
        Ok(Some(PubSubEvent::Subscribed(_))) => {}
        Ok(Some(PubSubEvent::Refused { reason, .. })) => return Err(failed(reason)),
        _ => return Err(failed("it did not let anybody listen".to_owned())),
    }
    // Messages that it sent before the subscription were missed.
    if let Ok(answer) = shared.ask_one(sentinel, limit).await
        && let Some(named) = answer.settled()
        && shared.named().is_some_and(|newest| newest.epoch < named.epoch)
    {
        shared.invalidate_unless(&named.host);
    }
    let mut ping = tokio::time::interval_at(timer::after(PING), PING);
    loop {
        let overdue = conn.overdue_at();
        tokio::select! {
            event = conn.recv() => match event {
                Some(PubSubEvent::Message { payload, .. }) => {
                    if let Some(host) = switched_to(&payload, &shared.group.name) {
                        shared.invalidate_unless(&host);
                    }
                }
                Some(PubSubEvent::Subscribed(_) | PubSubEvent::Pong) => {}
                Some(PubSubEvent::Ended { .. } | PubSubEvent::Refused { .. } | PubSubEvent::Widened(_)) | None => {
                    return Ok(());
                }
            },
            () = timer::at(overdue) => return Ok(()),
            _ = ping.tick() => {
                if conn.ping().await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

/// Parses the new primary of `name`, where the message is about that: `name old-host old-port new-host
/// new-port`.
fn switched_to(payload: &[u8], name: &str) -> Option<Host> {
    let text = std::str::from_utf8(payload).ok()?;
    // Names may hold spaces, addresses do not.
    let mut parts = text.rsplit(' ');
    let (port, host) = (parts.next()?.parse().ok()?, parts.next()?);
    let rest = parts.rev().collect::<Vec<_>>();
    let (_, own) = rest.split_last().and_then(|(_, rest)| rest.split_last())?;
    (own.join(" ") == name).then(|| Host { name: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_about_the_primary_of_this_name_count() {
        let host = Host { name: "10.0.0.2".into(), port: 6380 };
        assert_eq!(switched_to(b"jobs 10.0.0.1 6379 10.0.0.2 6380", "jobs"), Some(host.clone()));
        assert_eq!(switched_to(b"my jobs 10.0.0.1 6379 10.0.0.2 6380", "my jobs"), Some(host));
        for other in
            [&b"other 10.0.0.1 6379 10.0.0.2 6380"[..], b"jobs", b"", b"jobs 1 2", b"\xff", b"jobs a b c d"]
        {
            assert_eq!(switched_to(other, "jobs"), None);
        }
    }
}
