//! ZooKeeper's own operations, without anything around them.

use std::net::SocketAddr;

use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::Outcome;

/// One session.
#[derive(Clone, Debug)]
pub(crate) struct RawZooKeeper(Client);

impl RawZooKeeper {
    pub(crate) async fn connect(addr: SocketAddr) -> Outcome<RawZooKeeper> {
        let client = Client::connect(&addr.to_string()).await?;
        match client.create(PARENT, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await {
            Ok(_) | Err(Error::NodeExists) => Ok(RawZooKeeper(client)),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a node in a line, and deletes it.
    pub(crate) async fn cycle(self) -> Outcome<()> {
        let path = self.create().await?;
        self.delete(&path).await
    }

    pub(crate) async fn create(&self) -> Outcome<String> {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, sequence) = self.0.create(PREFIX, DATA, &options).await?;
        Ok(format!("{PREFIX}{sequence}"))
    }

    pub(crate) async fn delete(&self, path: &str) -> Outcome<()> {
        Ok(self.0.delete(path, None).await?)
    }
}

const PARENT: &str = "/raw";
/// About as long as what leasehold writes.
const PREFIX: &str = "/raw/0123456789abcdef0123456789abcdef-1-1-";
const DATA: &[u8] = b"host=bench pid=4711";
