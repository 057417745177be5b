//! The subscription connections: one, or one to each server of a cluster.

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::changes::within;
use leasehold_core::Failure;
use tokio::sync::Mutex;

use crate::net::subscriber::{Subscriber, Subscription};
use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::slots::slot_of;
use crate::topology::cluster::Member;
use crate::topology::cluster::delivery::unserved;
use crate::topology::servers::Servers;

/// The subscription connections.
#[derive(Debug)]
pub(crate) enum Subscribers {
    /// One connection for all channels.
    One(Subscriber),
    /// The server of the channel's slot, for messages of this scope.
    BySlot(Arc<Servers>, ChannelScope),
}

impl Subscribers {
    /// Joins a channel that is subscribed already.
    pub(crate) fn join(&self, channel: &str) -> Option<Subscription> {
        match self {
            Subscribers::One(subscriber) => subscriber.join(channel),
            Subscribers::BySlot(_, scope) => of_scope(&*self.owner(channel)?, *scope).join(channel),
        }
    }

    /// Subscribes to a channel, as [`Subscriber::subscribe`].
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<Subscription, Failure> {
        match self {
            Subscribers::One(subscriber) => subscriber.subscribe(channel).await,
            Subscribers::BySlot(_, scope) => match self.owner(channel) {
                Some(owner) => of_scope(&owner, *scope).subscribe(channel).await,
                None => Err(unserved(slot_of(channel))),
            },
        }
    }

    /// Returns `true` if notifications of this channel arrive over this subscription, unless its connection is
    /// broken.
    pub(crate) fn is_current(&self, subscription: &Subscription, channel: &str) -> bool {
        match self {
            Subscribers::One(_) => true,
            Subscribers::BySlot(_, scope) => {
                self.owner(channel).is_none_or(|owner| of_scope(&owner, *scope).owns(subscription))
            }
        }
    }

    /// Waits for a notification, for so long at most as `pause` allows. Where nothing is subscribed to, it
    /// subscribes and returns: a change before that would be missed, so its caller looks again.
    pub(crate) async fn next(
        &self,
        subscription: &Mutex<Option<Subscription>>,
        channel: &str,
        pause: impl Fn(&Subscription) -> Duration,
    ) -> Result<(), Failure> {
        let mut subscription = subscription.lock().await;
        subscription.take_if(|events| !self.is_current(events, channel));
        match &mut *subscription {
            Some(events) => within(pause(events), events.recv()).await,
            none => {
                *none = Some(self.subscribe(channel).await?);
                Ok(())
            }
        }
    }

    fn owner(&self, channel: &str) -> Option<Arc<Member>> {
        match self {
            Subscribers::BySlot(servers, _) => match &**servers {
                Servers::Cluster(cluster) => cluster.owner(slot_of(channel)),
                Servers::One(_) => None,
            },
            Subscribers::One(_) => None,
        }
    }
}

fn of_scope(member: &Member, scope: ChannelScope) -> &Subscriber {
    match scope {
        ChannelScope::Slot => &member.subscriber,
        ChannelScope::Everywhere => &member.broadcasts,
    }
}
