//! The functions that need no more than a URL: to open a backend, to print the tables of a store, to sweep it.
//!
//! `schemes.rs` is the table of all URL schemes, `stores.rs` has what each kind of store does, and `urls.rs`
//! prints the options that the stores declare.

mod schemes;
mod stores;
mod urls;

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::url::{UNREADABLE, is_ambiguous};
use leasehold_core::Backend;

use crate::error::{Error, ErrorKind, Result};
use schemes::store_of;
use stores::Store;

pub use urls::url_options;

#[cfg(feature = "etcd")]
pub use leasehold_etcd::EtcdProof;
#[cfg(feature = "zookeeper")]
pub use leasehold_zookeeper::ZooKeeperProof;

/// Locks inside a PostgreSQL transaction, for programs whose locks and data are in one database.
///
/// ```no_run
/// use leasehold::{Resource, postgres::{PostgresConfig, in_transaction}};
///
/// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// // The same URL as that of those who hold it by `Client::open`.
/// let config = PostgresConfig::parse("postgres://app@db/app?method=for-update")?;
/// let transaction = client.transaction().await?;
/// in_transaction(&transaction, &config, &Resource::new("orders/42")?).await?;
/// transaction.execute("UPDATE orders SET state = 'sent' WHERE id = 42", &[]).await?;
/// transaction.commit().await?; // writes it and releases the lock, in one
/// # Ok(()) }
/// ```
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use leasehold_postgres::{PostgresConfig, in_transaction, in_transaction_sql};
}

/// Locks inside a transaction of MySQL or MariaDB, for programs whose locks and data are in one database.
///
/// ```
/// use leasehold::mysql::{MySqlConfig, in_transaction_sql};
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// // The same URL as that of those who hold it by `Client::open`.
/// let config = MySqlConfig::parse("mysql://app@db/app?method=for-update")?;
/// // To be sent in a transaction, by any client, with the name of the resource as its one parameter.
/// let sql = in_transaction_sql(&config);
/// # assert!(sql.contains("(name) VALUES (?)"));
/// # Ok(()) }
/// # example().unwrap();
/// ```
#[cfg(feature = "mysql")]
pub mod mysql {
    pub use leasehold_mysql::{MySqlConfig, in_transaction_sql};
}

/// Opens the backend that `url` names.
pub(crate) async fn open_backend(url: &str) -> Result<Arc<dyn Backend>> {
    let opened = match store_of(url) {
        Ok(store) => store.open(url).await.map_err(|failure| Error::failed("open", failure)),
        Err(error) => Err(error),
    };
    opened.map_err(|error| discreet(url, error))
}

/// Returns the statements that create the tables of the store that `url` names, and grant the rights
/// that its user needs. They can be run again, and while clients are at work. Nothing is sent anywhere.
///
#[cfg_attr(feature = "postgres", doc = "```")]
#[cfg_attr(not(feature = "postgres"), doc = "```ignore")]
/// let statements = leasehold::schema("postgres://app@db/app?table=locks")?; // needs the feature `postgres`
/// assert!(statements.contains("CREATE TABLE IF NOT EXISTS \"locks\""));
/// assert!(statements.contains("GRANT SELECT, INSERT, UPDATE ON \"locks\" TO \"app\""));
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`] if the URL cannot be parsed, [`ErrorKind::Unsupported`] if the store has no tables.
pub fn schema(url: &str) -> Result<String> {
    let schema = |store: &dyn Store| store.schema(url).map_err(|failure| Error::failed("schema", failure));
    store_of(url).and_then(schema).map_err(|error| discreet(url, error))
}

/// The report of a [`sweep`].
///
/// With the feature `serde` it is an object with the numbers `seen`, `emptied` and `removed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepReport {
    /// The number of rows, or keys of fences, that were read.
    pub seen: u64,
    /// The number of rows whose claims had ended, and were removed. The row stays, for its fence.
    pub emptied: u64,
    /// The number of rows, or keys of fences, that were removed as a whole.
    pub removed: u64,
}

#[cfg(feature = "serde")]
impl serde::Serialize for SweepReport {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        let mut form = serializer.serialize_struct("SweepReport", 3)?;
        form.serialize_field("seen", &self.seen)?;
        form.serialize_field("emptied", &self.emptied)?;
        form.serialize_field("removed", &self.removed)?;
        form.end()
    }
}

/// Removes the remains of locks that have not been used for `unused_for` from the store that `url` names.
///
/// The next user of a name removes claims that have ended, so locks do not need a sweep: it is for
/// names that are not used any more. On PostgreSQL their rows are deleted. MySQL, MariaDB and SQLite
/// keep the rows and remove only the claims, because nothing else stops their fences from going back
/// when a clock is set back. On Redis, where each name keeps a key for its fence, these keys are
/// deleted; one key for each of the 16,384 slots keeps later fences above them.
///
/// # Promises
/// A resource that is held or waited for is not touched. The next fence of each name is greater
/// than all before. Clients and other sweepers may be at work; each step is a few short
/// requests for some hundred rows.
///
/// # Cancel safety
/// The future may be dropped at any point; what was swept by then stays swept.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the URL cannot be parsed, [`ErrorKind::Unsupported`] if the store keeps
/// nothing that can be swept, [`ErrorKind::Denied`] without the right to delete, and as
/// [`Client::open`](crate::Client::open).
pub async fn sweep(url: &str, unused_for: Duration) -> Result<SweepReport> {
    sweep_under(url, "", unused_for, |_| ()).await
}

/// Does as [`sweep`] for names that begin with `prefix` only, and calls `progress` with what is done after each step,
/// for people who wait for it.
///
/// A name of more than 160 bytes is not found by a prefix on Redis, whose keys have a hash of it.
///
/// # Cancel safety
/// As [`sweep`].
///
/// # Errors
/// As [`sweep`].
pub async fn sweep_under(
    url: &str,
    prefix: &str,
    unused_for: Duration,
    progress: impl Fn(SweepReport) + Send + Sync,
) -> Result<SweepReport> {
    let swept = match store_of(url) {
        Ok(store) => {
            let swept = store.sweep(url, prefix, unused_for, &progress).await;
            swept.map_err(|failure| Error::failed("sweep", failure))
        }
        Err(error) => Err(error),
    };
    swept.map_err(|error| discreet(url, error))
}

/// Returns the error without its words if these may repeat a part of a password. In `x://me:a?b@host`,
/// whose password should have its question mark encoded, a parser takes `b@host` for an option, and
/// would name it as an unknown one.
fn discreet(url: &str, error: Error) -> Error {
    if error.kind() != ErrorKind::Invalid || !is_ambiguous(url) {
        return error;
    }
    Error::new(ErrorKind::Invalid, error.op(), UNREADABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_that_was_not_encoded_is_not_repeated() {
        for scheme in schemes::tests::all_built().filter(|scheme| scheme.ends_with("://")) {
            for login in
                ["me:6?hunter2", "me:6?a=b&hunter2", "me@a:6?hunter2=", "me:6?hun/ter2", "6#hunter2?hunter2"]
            {
                let url = format!("{scheme}{login}@h,i,j/n");
                let error = open_backend(&url).await.unwrap_err();
                let shown = format!("{error} {error:?}");
                assert!(error.kind() == ErrorKind::Invalid && !shown.contains("ter2"), "{url}: {shown}");
                assert!(shown.contains("%3F"), "{url}: {shown}");
            }
        }
        let error = open_backend("redis://h/?hunter=2").await.unwrap_err().to_string();
        assert!(error.contains("known are"), "text that cannot be a login is repeated: {error}");
    }

    #[tokio::test]
    async fn a_url_without_a_colon_is_refused() {
        for url in ["", "mem", "file", "nothing"] {
            let error = open_backend(url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
        }
    }
}
