//! The proof that a grant leaves with its holder: enough to guard the holder's own transactions.

use std::fmt;

use prost::Message;

use crate::protocol::txn::created_at;

/// A condition for a transaction of one's own: fencing without a number.
///
/// While the claim holds, its key exists with this create revision. A transaction on the same cluster
/// that compares both takes effect only if the lock is still held *at that very revision*: no clock, no
/// fence, no late write. A guard hands it out: `guard.proof().get::<EtcdProof>()`.
///
/// With any etcd client the condition is `create_revision(key) == proof.create_revision()`; in Rust's
/// `etcd-client`, for instance, `Compare::create_revision(proof.key(), CompareOp::Equal,
/// proof.create_revision())`, and in Go `clientv3.Compare(clientv3.CreateRevision(key), "=",
/// revision)`. Clients that are made from etcd's own `.proto` files decode [`EtcdProof::compare`].
///
/// ```no_run
/// # async fn example(locks: leasehold::Client) -> leasehold::Result<()> {
/// use leasehold_etcd::EtcdProof;
///
/// let guard = locks.mutex("orders/42").lock().await?;
/// if let Some(proof) = guard.proof().get::<EtcdProof>() {
///     let (key, revision) = (proof.key(), proof.create_revision());
///     println!("If(Compare(CreateRevision({}), \"=\", {revision}))", String::from_utf8_lossy(key));
/// }
/// # Ok(()) }
/// ```
///
/// # Promises
/// Of two transactions that carry the conditions of two holders of a mutex, the later one in the
/// cluster's order is the later holder's. Also of two tasks of one process: a guard whose proof was
/// taken is not handed over under the same revision, neither to the next task of the process nor by
/// `transfer` to another one. Its release deletes the key, and no later grant has its revision.
///
/// # Does not promise
/// Anything about writes elsewhere. For those there is the fence, which is the same number.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdProof {
    pub(crate) key: Vec<u8>,
    pub(crate) create_revision: i64,
}

impl fmt::Debug for EtcdProof {
    /// Shows the revision alone: the key names the claim, whose id is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdProof").field("create_revision", &self.create_revision).finish_non_exhaustive()
    }
}

impl EtcdProof {
    /// Returns the claim's key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the revision that created the key.
    pub fn create_revision(&self) -> i64 {
        self.create_revision
    }

    /// Returns the whole condition as etcd reads it: an encoded message `etcdserverpb.Compare`.
    pub fn compare(&self) -> Vec<u8> {
        created_at(&self.key, self.create_revision).encode_to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::proto::{Compare, Operand, compare};

    #[test]
    fn what_is_printed_shows_no_key() {
        let shown = format!("{:?}", EtcdProof { key: b"secret".to_vec(), create_revision: 7 });
        assert_eq!(shown, "EtcdProof { create_revision: 7, .. }");
    }

    #[test]
    fn the_condition_is_written_as_etcd_reads_it() {
        let proof = EtcdProof { key: b"k".to_vec(), create_revision: 7 };
        // Field 2 is the target (1: the create revision), 3 the key, 5 the revision; what is zero is
        // left out: "equal".
        assert_eq!(proof.compare(), [0x10, 1, 0x1a, 1, b'k', 0x28, 7]);
        let read = Compare::decode(proof.compare().as_slice()).unwrap();
        assert_eq!((read.result, read.operand), (compare::EQUAL, Some(Operand::CreateRevision(7))));
    }
}
