//! Connections to one server: opening, commands, subscriptions, and pauses after failures.

pub(crate) mod command_conn;
pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod failures;
pub(crate) mod login;
pub(crate) mod outage;
pub(crate) mod pipe;
pub(crate) mod pubsub_conn;
pub(crate) mod replicas;
pub(crate) mod replies;
pub(crate) mod request;
pub(crate) mod run;
pub(crate) mod sent;
pub(crate) mod subscriber;
pub(crate) mod timer;
#[cfg_attr(not(feature = "tls"), path = "net/no_tls.rs")]
pub(crate) mod tls;
