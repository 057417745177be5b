//! etcd's own operations, without anything around them.
//!
//! The few messages are written down by field number, as in the backend, of which nothing is used here.

use std::net::SocketAddr;

use http::uri::PathAndQuery;
use prost::{Message, Oneof};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{IntoRequest, Status};
use tonic_prost::ProstCodec;

use crate::Outcome;

/// One connection, and the lease that its key lives on: without one it would be no lock.
#[derive(Clone, Debug)]
pub(crate) struct RawEtcd {
    channel: Channel,
    lease: i64,
}

impl RawEtcd {
    pub(crate) async fn connect(addr: SocketAddr) -> Outcome<RawEtcd> {
        let channel = Endpoint::from_shared(format!("http://{addr}"))?.connect().await?;
        let mut raw = RawEtcd { channel, lease: 0 };
        let lease: Lease =
            raw.ask("/etcdserverpb.Lease/LeaseGrant", LeaseOrder { ttl: LEASE_SECONDS }).await?;
        raw.lease = lease.id;
        Ok(raw)
    }

    /// Puts a key that does not exist, and deletes it.
    pub(crate) async fn cycle(self) -> Outcome<()> {
        self.put().await?;
        self.delete().await
    }

    pub(crate) async fn put(&self) -> Outcome<()> {
        let absent = Compare { target: CREATE, key: KEY.to_vec(), create_revision: Some(0) };
        let put = Operation::Put(Put { key: KEY.to_vec(), value: VALUE.to_vec(), lease: self.lease });
        let put = Transaction { compare: vec![absent], success: vec![Request { operation: Some(put) }] };
        if self.transact(put).await? { Ok(()) } else { Err("the key was there before".into()) }
    }

    pub(crate) async fn delete(&self) -> Outcome<()> {
        let delete = Operation::Delete(Delete { key: KEY.to_vec() });
        let delete = Transaction { compare: Vec::new(), success: vec![Request { operation: Some(delete) }] };
        self.transact(delete).await?;
        Ok(())
    }

    async fn transact(&self, transaction: Transaction) -> Result<bool, Status> {
        let answer: Answer = self.ask("/etcdserverpb.KV/Txn", transaction).await?;
        Ok(answer.succeeded)
    }

    async fn ask<Q, A>(&self, path: &'static str, question: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(question.into_request(), path, codec).await?.into_inner())
    }
}

#[derive(Clone, PartialEq, Message)]
struct Transaction {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<Request>,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    create_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(oneof = "Operation", tags = "2, 3")]
    operation: Option<Operation>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Operation {
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    Delete(Delete),
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseOrder {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

/// To compare the revision that created a key.
const CREATE: i32 = 1;
/// Longer than any run.
const LEASE_SECONDS: i64 = 3_600;
/// About as long as what leasehold writes.
const KEY: &[u8] = b"raw/cycle!0123456789abcdef0123456789abcdef.1.1";
const VALUE: &[u8] = b"30000 host=bench pid=4711";
