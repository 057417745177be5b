//! One server of the cluster, and the calls that it answers.
//!
//! Ground rules: nothing is tried twice here, and nothing here waits for a limited time: that is
//! `cluster.rs`. A request names no claim and no lock; it is etcd's.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use leasehold_backend::url::{Host, client_settings, invalid};
use leasehold_core::Failure;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{IntoRequest, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::config::EtcdConfig;
use crate::net::secured::Secured;
use crate::protocol::proto::{
    AlarmRequest, AlarmResponse, AuthenticateRequest, AuthenticateResponse, Header, LeaseGrantRequest,
    LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, MemberListRequest,
    MemberListResponse, RangeRequest, RangeResponse, RoleRequest, RoleResponse, StatusRequest,
    StatusResponse, TxnRequest, TxnResponse, UserRequest, UserResponse, WatchRequest, WatchResponse,
};

/// A server that may be connected.
#[derive(Debug)]
pub(crate) struct Member {
    name: String,
    endpoint: Endpoint,
    /// The connector with TLS, where the URL asks for it.
    secured: Option<Secured>,
    connection: watch::Sender<NumberedChannel>,
    first: Arc<FirstAnswer>,
}

/// A channel, and how many there were before it.
#[derive(Clone, Debug)]
struct NumberedChannel {
    number: u64,
    channel: Channel,
}

/// The cluster that this client uses: that of the first answer, and how far its history went.
///
/// The URL may name servers of two clusters, or a server may come back as another cluster's. Locks of
/// one exclude no claims on the other, so an answer from another cluster than the first does not count.
///
/// A cluster that is wiped or restored from a backup may keep its id, which is made from URLs and a token. Then
/// its revision is lower than one that this client knows. No other cluster says that to a linearizable request:
/// every member that answers one has applied all that was agreed on before the request was sent, also what was
/// answered by other members, and the revision follows from what was applied. So such an answer is compared with
/// what was known when its request was *sent*: the answers to requests that are under way together may overtake
/// each other. An answer that a member gives from its own state alone (to a keep-alive, a watch or a question for its
/// status) is no evidence, since a member may lag behind.
#[derive(Debug, Default)]
pub(crate) struct FirstAnswer {
    cluster: AtomicU64,
    /// The greatest revision of all linearizable answers.
    revision: AtomicI64,
}

impl FirstAnswer {
    /// Returns the lowest revision that a linearizable request may be answered at if it is sent from now on.
    fn floor(&self) -> i64 {
        self.revision.load(Ordering::Relaxed)
    }

    fn check(&self, header: Option<Header>) -> Result<(), Status> {
        let Some(id) = header.map(|header| header.cluster_id).filter(|id| *id != 0) else { return Ok(()) };
        match self.cluster.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed) {
            Err(first) if first != id => {
                Err(Status::data_loss(format!("{OTHER_CLUSTER}: its id is {id:x}, not {first:x} as before")))
            }
            _ => Ok(()),
        }
    }

    /// Checks the answer to a linearizable request before which [`FirstAnswer::floor`] was this one.
    fn check_linearizable(&self, header: Option<Header>, floor: i64) -> Result<(), Status> {
        self.check(header)?;
        let Some(revision) = header.map(|header| header.revision).filter(|revision| *revision != 0) else {
            return Ok(());
        };
        if revision < floor {
            return Err(Status::data_loss(format!("{WENT_BACK}: its revision is {revision}, after {floor}")));
        }
        self.revision.fetch_max(revision, Ordering::Relaxed);
        Ok(())
    }
}

impl Member {
    /// Returns all servers of a cluster. Nothing is sent before the first call.
    pub(crate) fn all(config: &EtcdConfig) -> Result<Vec<Member>, Failure> {
        // The files are read again for each connection; this one reports mistakes at once.
        config.tls.as_ref().map(client_settings).transpose()?;
        let first = Arc::<FirstAnswer>::default();
        config.hosts.iter().map(|host| Member::new(host, config, first.clone())).collect()
    }

    fn new(host: &Host, config: &EtcdConfig, first: Arc<FirstAnswer>) -> Result<Member, Failure> {
        let unusable =
            |error: &dyn std::fmt::Display| invalid(format!("{host} cannot be used as a server: {error}"));
        let mut endpoint = Endpoint::from_shared(format!("http://{host}"))
            .map_err(|error| unusable(&error))?
            .tcp_keepalive(Some(TCP_KEEPALIVE))
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        let mut secured = None;
        match &config.tls {
            None => endpoint = endpoint.connect_timeout(config.timeout),
            Some(files) => {
                let origin = format!("https://{host}").parse();
                endpoint = endpoint.origin(origin.map_err(|error| unusable(&error))?);
                secured = Some(Secured::new(host.clone(), files.clone(), config.timeout, TCP_KEEPALIVE));
            }
        }
        let channel = channel(&endpoint, secured.as_ref());
        let connection = watch::Sender::new(NumberedChannel { number: 0, channel });
        Ok(Member { name: host.to_string(), endpoint, secured, connection, first })
    }

    /// Returns the server as the URL names it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the connection as it is now.
    pub(crate) fn connection(&self, token: Option<MetadataValue<Ascii>>) -> Connection {
        let channel = self.connection.borrow().channel.clone();
        Connection { channel, token, first: self.first.clone(), is_ending: false }
    }

    /// Returns which connection it is now, for [`Member::reconnect`].
    pub(crate) fn connection_number(&self) -> u64 {
        self.connection.borrow().number
    }

    /// Replaces the connection of this number, which may hang for as long as the system's own limits. All
    /// requests that were late on it may call this; it is replaced once.
    pub(crate) fn reconnect(&self, number: u64) {
        self.connection.send_if_modified(|connection| {
            let is_current = connection.number == number;
            if is_current {
                let channel = channel(&self.endpoint, self.secured.as_ref());
                *connection = NumberedChannel { number: number + 1, channel };
            }
            is_current
        });
    }

    /// Ends when the connection of this number is not used any more.
    pub(crate) async fn replaced(&self, number: u64) {
        let mut connections = self.connection.subscribe();
        // It has a sender for as long as this is borrowed.
        _ = connections.wait_for(|connection| connection.number != number).await;
    }
}

/// A connection, with the token that every request on it carries.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    first: Arc<FirstAnswer>,
    /// `true` if answers may be those of a cluster whose history went back.
    is_ending: bool,
}

/// The answer to a keep-alive: the term of the server that passed it on, and the ttl of each lease, 0
/// for one that does not exist.
#[derive(Clone, Debug)]
pub(crate) struct KeepAliveReply {
    pub(crate) term: u64,
    pub(crate) ttls: HashMap<i64, i64>,
}

impl Connection {
    /// Returns the connection for requests that only end claims of this client. Their ids are random, so they do no harm
    /// in a cluster whose history went back, and a claim of a request that was refused there is not left behind.
    pub(crate) fn into_ending(self) -> Connection {
        Connection { is_ending: true, ..self }
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        let floor = self.first.floor();
        let found: RangeResponse = self.unary("/etcdserverpb.KV/Range", request).await?;
        self.check_linearizable(found.header, floor)?;
        Ok(found)
    }

    /// Runs a transaction. One without any operation would not be linearizable; this client sends none.
    pub(crate) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        let floor = self.first.floor();
        let done: TxnResponse = self.unary("/etcdserverpb.KV/Txn", request).await?;
        self.check_linearizable(done.header, floor)?;
        Ok(done)
    }

    pub(crate) async fn grant(&self, request: LeaseGrantRequest) -> Result<LeaseGrantResponse, Status> {
        let granted: LeaseGrantResponse = self.unary("/etcdserverpb.Lease/LeaseGrant", request).await?;
        self.first.check(granted.header)?;
        Ok(granted)
    }

    pub(crate) async fn time_to_live(
        &self,
        request: LeaseTimeToLiveRequest,
    ) -> Result<LeaseTimeToLiveResponse, Status> {
        self.unary("/etcdserverpb.Lease/LeaseTimeToLive", request).await
    }

    /// Asks for the state of the server itself.
    pub(crate) async fn status(&self) -> Result<StatusResponse, Status> {
        let answer: StatusResponse = self.unary("/etcdserverpb.Maintenance/Status", StatusRequest {}).await?;
        self.first.check(answer.header)?;
        Ok(answer)
    }

    pub(crate) async fn alarms(&self) -> Result<AlarmResponse, Status> {
        self.unary("/etcdserverpb.Maintenance/Alarm", AlarmRequest {}).await
    }

    pub(crate) async fn members(&self) -> Result<MemberListResponse, Status> {
        self.unary("/etcdserverpb.Cluster/MemberList", MemberListRequest {}).await
    }

    pub(crate) async fn revoke(&self, id: i64) -> Result<LeaseRevokeResponse, Status> {
        self.unary("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest { id }).await
    }

    /// Asks for the roles of a user.
    pub(crate) async fn user(&self, name: String) -> Result<UserResponse, Status> {
        self.unary("/etcdserverpb.Auth/UserGet", UserRequest { name }).await
    }

    /// Asks for the permissions of a role.
    pub(crate) async fn role(&self, role: String) -> Result<RoleResponse, Status> {
        self.unary("/etcdserverpb.Auth/RoleGet", RoleRequest { role }).await
    }

    pub(crate) async fn authenticate(
        &self,
        request: AuthenticateRequest,
    ) -> Result<AuthenticateResponse, Status> {
        self.unary("/etcdserverpb.Auth/Authenticate", request).await
    }

    /// Keeps leases alive: all of them on one stream, which ends with its last answer.
    pub(crate) async fn keep_alive(&self, leases: Vec<i64>) -> Result<KeepAliveReply, Status> {
        let count = leases.len();
        let requests = stream::iter(leases.into_iter().map(|id| LeaseKeepAliveRequest { id }));
        let mut answers: Streaming<LeaseKeepAliveResponse> =
            self.streaming("/etcdserverpb.Lease/LeaseKeepAlive", requests).await?;
        let mut kept = KeepAliveReply { term: u64::MAX, ttls: HashMap::with_capacity(count) };
        while kept.ttls.len() < count {
            let Some(answer) = answers.next().await.transpose()? else {
                return Err(Status::unavailable("the keep-alive stream ended early"));
            };
            self.first.check(answer.header)?;
            // The oldest term that any of the answers was given under.
            kept.term = kept.term.min(term(answer.header));
            kept.ttls.insert(answer.id, answer.ttl);
        }
        Ok(kept)
    }

    /// Opens a stream of watches. [`Connection::check`] checks that an answer is of the right cluster.
    pub(crate) async fn watch(
        &self,
        requests: mpsc::Receiver<WatchRequest>,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let requests = stream::unfold(requests, |mut requests| async {
            let request = requests.recv().await?;
            Some((request, requests))
        });
        self.streaming("/etcdserverpb.Watch/Watch", requests).await
    }

    /// Checks that an answer is of the cluster that this client uses.
    pub(crate) fn check(&self, header: Option<Header>) -> Result<(), Status> {
        self.first.check(header)
    }

    fn check_linearizable(&self, header: Option<Header>, floor: i64) -> Result<(), Status> {
        match self.is_ending {
            true => self.first.check(header),
            false => self.first.check_linearizable(header, floor),
        }
    }

    async fn unary<Q, A>(&self, path: &'static str, question: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let path = http::uri::PathAndQuery::from_static(path);
        // Boxed, because it is large, and all that wait for it are moved about with what they wait for.
        let asked = Box::pin(grpc.unary(self.request(question), path, ProstCodec::<Q, A>::default()));
        Ok(asked.await?.into_inner())
    }

    async fn streaming<Q, A>(
        &self,
        path: &'static str,
        questions: impl stream::Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let path = http::uri::PathAndQuery::from_static(path);
        let answers = grpc.streaming(self.request(questions), path, ProstCodec::<Q, A>::default()).await?;
        Ok(answers.into_inner())
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = message.into_request();
        // A server that knows no leader says so at once instead of letting the request wait.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

/// Returns the term of an answer; one that has none agrees with no other.
pub(crate) fn term(header: Option<Header>) -> u64 {
    header.map_or(0, |header| header.raft_term)
}

/// Returns a channel that is connected by its first request, and anew after each loss.
fn channel(endpoint: &Endpoint, secured: Option<&Secured>) -> Channel {
    match secured {
        // Its own time limit: that of the endpoint hides that no request was sent.
        Some(secured) => endpoint.connect_with_connector_lazy(secured.clone()),
        None => endpoint.connect_lazy(),
    }
}

/// The text that distinguishes the answer of another cluster from errors of servers.
pub(crate) const OTHER_CLUSTER: &str = "a server of another cluster answered";
/// The text that distinguishes an answer that is older than what is known from errors of servers.
pub(crate) const WENT_BACK: &str = "the history of the cluster went back";
/// Servers refuse clients that ping more often than every five seconds.
const PING: Duration = Duration::from_secs(10);
const PONG: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE: Duration = Duration::from_secs(10);
/// A queue of the most claims that are allowed, with the longest names.
const MAX_ANSWER: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cluster_id: u64, revision: i64) -> Option<Header> {
        Some(Header { cluster_id, member_id: 1, revision, raft_term: 2 })
    }

    #[test]
    fn an_answer_is_compared_with_what_was_known_when_its_request_was_sent() {
        let first = FirstAnswer::default();
        let early = first.floor();
        first.check_linearizable(header(7, 10), first.floor()).unwrap();
        let floor = first.floor();
        first.check_linearizable(header(7, 20), floor).unwrap();
        // Requests under way together: their answers overtake each other.
        first.check_linearizable(header(7, 15), floor).unwrap();
        first.check_linearizable(header(7, 5), early).unwrap();
        // What is not changed is read at the same revision, and an answer without a revision shows nothing.
        first.check_linearizable(header(7, 20), first.floor()).unwrap();
        first.check_linearizable(header(7, 0), first.floor()).unwrap();
        first.check_linearizable(None, first.floor()).unwrap();
        let status = first.check_linearizable(header(7, 19), first.floor()).unwrap_err();
        assert!(status.message().contains(WENT_BACK), "{status}");
        // A server that lags says this to requests that are not linearizable.
        first.check(header(7, 3)).unwrap();
    }

    #[test]
    fn the_revision_of_another_cluster_does_not_count() {
        let first = FirstAnswer::default();
        first.check_linearizable(header(7, 10), first.floor()).unwrap();
        let status = first.check_linearizable(header(8, 99), first.floor()).unwrap_err();
        assert!(status.message().contains(OTHER_CLUSTER), "{status}");
        first.check_linearizable(header(7, 11), first.floor()).unwrap();
    }
}
