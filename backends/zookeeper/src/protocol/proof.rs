//! The proof that a grant leaves with its holder: enough to guard the holder's own transactions.

use std::fmt;

use crate::protocol::shown::Shown;

/// A proof of a grant, for a `check` in a multi of one's own.
///
/// The claim's node exists exactly as long as the claim, its name is never used again, and it is never
/// written to. A multi on the same ensemble that begins with a check of this path and
/// [`version`](ZooKeeperProof::version) takes effect only if the lock is still held *at that very
/// transaction*: no clock, no fence, no late write.
///
/// With any ZooKeeper client the operation is `check(path, version)`; in Rust's `zookeeper-client`, for
/// instance, `multi.add_check_version(proof.path(), proof.version())`, and in Curator
/// `transactionOp().check().withVersion(version).forPath(path)`. The path begins at ZooKeeper's own
/// root, so the client that sends the multi has no chroot.
///
/// ```no_run
/// # async fn example(locks: leasehold::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_zookeeper::ZooKeeperProof;
///
/// let guard = locks.mutex("orders/42").lock().await?;
/// let proof = guard.proof().get::<ZooKeeperProof>().ok_or("these locks are not ZooKeeper's")?;
/// let client = zookeeper_client::Client::connect("zk1:2181").await?;
/// let mut multi = client.new_multi_writer();
/// multi.add_check_version(proof.path(), proof.version())?;
/// multi.add_set_data("/orders/42", b"shipped", None)?;
/// multi.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Promises
/// Of two multis that carry the checks of two holders of a mutex, the later one in the ensemble's order
/// is the later holder's. Also of two tasks of one process: a guard whose proof was taken is not handed
/// over under the same node. Its release deletes the node, and the next holder has another one.
///
/// # Does not promise
/// Anything about writes elsewhere. For those there is the fence, whose `seq` is
/// [`czxid`](ZooKeeperProof::czxid).
#[derive(Clone, PartialEq, Eq)]
pub struct ZooKeeperProof {
    pub(crate) path: String,
    pub(crate) czxid: i64,
}

impl fmt::Debug for ZooKeeperProof {
    /// Shows the path without the claim's id, which is the secret that ends the claim.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeperProof({:?}, {:#x})", Shown(&self.path), self.czxid)
    }
}

impl ZooKeeperProof {
    /// Returns the claim's node, from ZooKeeper's own root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the version of the node's data, which never changes while the claim holds.
    pub fn version(&self) -> i32 {
        0
    }

    /// Returns the transaction that made the node.
    pub fn czxid(&self) -> i64 {
        self.czxid
    }
}
