//! What a grant leaves with its holder: enough to guard his own transactions.

/// Proof of a grant, for a condition in a transaction of one's own.
///
/// While the claim holds, its key exists with this create revision. A transaction on the same cluster that compares
/// both takes effect only if the lock is still held *at that very revision*: no clock, no fence, no late write.
///
/// With any etcd client the condition is `create_revision(key) == proof.create_revision()`; in Rust's `etcd-client`, for instance,
/// `Compare::create_revision(proof.key(), CompareOp::Equal, proof.create_revision())`, and in Go
/// `clientv3.Compare(clientv3.CreateRevision(key), "=", revision)`.
///
/// # Promises
/// Of two transactions that carry the conditions of two holders of a mutex, the later one in the cluster's order is the later holder's.
///
/// # Does not promise
/// Anything about writes elsewhere. For those there is the fence, which is the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdProof {
    pub(crate) key: Vec<u8>,
    pub(crate) create_revision: i64,
}

impl EtcdProof {
    /// The claim's key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The revision that created the key.
    pub fn create_revision(&self) -> i64 {
        self.create_revision
    }
}
