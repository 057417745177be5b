//! Opens a backend from a URL.

mod urls;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use leasehold_backend::url::{UNREADABLE, is_ambiguous, meant as nearest};
use leasehold_core::Backend;

use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "redis")]
use crate::layer::{Dual, Quorum, QuorumConfig};
use crate::local::{FileBackend, FileConfig, MemoryBackend};

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
    // In a box, because all backends together are deep: the callers' futures would come near the
    // compiler's limit.
    Box::pin(open_any(url)).await.map_err(|error| discreet(url, error))
}

async fn open_any(url: &str) -> Result<Arc<dyn Backend>> {
    let scheme = url.split(':').next().unwrap_or_default();
    match scheme {
        "mem" => Ok(memory(&url["mem:".len()..])),
        "file" => open_files(url),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => open_redis(url).await,
        #[cfg(feature = "redis")]
        "redlock" | "redlocks" => open_redlock(url).await,
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => open_etcd(url).await,
        #[cfg(feature = "memcached")]
        "memcached" | "memcacheds" => open_memcached(url).await,
        #[cfg(feature = "sqlite")]
        "sqlite" => open_sqlite(url).await,
        #[cfg(feature = "zookeeper")]
        "zk" | "zks" => open_zookeeper(url).await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => open_postgres(url).await,
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => open_mysql(url).await,
        _ => Err(unknown(url)),
    }
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
    schema_of(url).map_err(|error| discreet(url, error))
}

fn schema_of(url: &str) -> Result<String> {
    match url.split(':').next().unwrap_or_default() {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let config = leasehold_postgres::PostgresConfig::parse(url);
            let config = config.map_err(|failure| Error::failed("schema", failure))?;
            Ok(leasehold_postgres::schema(&config) + &leasehold_postgres::grants(&config))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            let config = leasehold_mysql::MySqlConfig::parse(url);
            let config = config.map_err(|failure| Error::failed("schema", failure))?;
            Ok(leasehold_mysql::schema(&config) + &leasehold_mysql::grants(&config))
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let config = leasehold_sqlite::SqliteConfig::parse(url);
            Ok(leasehold_sqlite::schema(&config.map_err(|failure| Error::failed("schema", failure))?))
        }
        scheme if is_known(scheme) => {
            let text = format!("stores of the scheme `{scheme}:` have no tables: there is nothing to create");
            Err(Error::new(ErrorKind::Unsupported, "schema", text))
        }
        _ => Err(unknown(url)),
    }
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
    pub forgotten: u64,
}

#[cfg(feature = "serde")]
impl serde::Serialize for SweepReport {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        let mut form = serializer.serialize_struct("SweepReport", 3)?;
        form.serialize_field("seen", &self.seen)?;
        form.serialize_field("emptied", &self.emptied)?;
        form.serialize_field("removed", &self.forgotten)?;
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
pub async fn sweep(url: &str, unused_for: std::time::Duration) -> Result<SweepReport> {
    sweep_any(url, unused_for).await.map_err(|error| discreet(url, error))
}

async fn sweep_any(url: &str, unused_for: std::time::Duration) -> Result<SweepReport> {
    match url.split(':').next().unwrap_or_default() {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let failed = |failure| Error::failed("sweep", failure);
            let config = leasehold_postgres::PostgresConfig::parse(url).map_err(failed)?;
            let swept = leasehold_postgres::sweep(config, Arc::new(crate::SystemClock), unused_for).await;
            let leasehold_postgres::SweepReport { seen, emptied, forgotten } = swept.map_err(failed)?;
            Ok(SweepReport { seen, emptied, forgotten })
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            let failed = |failure| Error::failed("sweep", failure);
            let config = leasehold_mysql::MySqlConfig::parse(url).map_err(failed)?;
            let swept = leasehold_mysql::sweep(config, Arc::new(crate::SystemClock), unused_for).await;
            let leasehold_mysql::SweepReport { seen, emptied, forgotten } = swept.map_err(failed)?;
            Ok(SweepReport { seen, emptied, forgotten })
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let failed = |failure| Error::failed("sweep", failure);
            let config = leasehold_sqlite::SqliteConfig::parse(url).map_err(failed)?;
            let swept = leasehold_sqlite::sweep(config, Arc::new(crate::SystemClock), unused_for).await;
            let leasehold_sqlite::SweepReport { seen, emptied, forgotten } = swept.map_err(failed)?;
            Ok(SweepReport { seen, emptied, forgotten })
        }
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => {
            let failed = |failure| Error::failed("sweep", failure);
            let config = leasehold_redis::RedisConfig::parse(url).map_err(failed)?;
            let leasehold_redis::SweepReport { seen, forgotten } =
                leasehold_redis::sweep(config, unused_for).await.map_err(failed)?;
            Ok(SweepReport { seen, emptied: 0, forgotten })
        }
        scheme if is_known(scheme) => {
            _ = unused_for;
            let text = match scheme.starts_with("redlock") {
                true => {
                    "each member of a redlock keeps its part of every fence for good: nothing can be swept"
                        .to_owned()
                }
                false => format!(
                    "stores of the scheme `{scheme}:` keep no rows of ended locks: there is nothing to sweep"
                ),
            };
            Err(Error::new(ErrorKind::Unsupported, "sweep", text))
        }
        _ => Err(unknown(url)),
    }
}

fn open_files(url: &str) -> Result<Arc<dyn Backend>> {
    let failed = |failure| Error::failed("open", failure);
    let config = FileConfig::from_url(url).map_err(failed)?;
    Ok(Arc::new(FileBackend::open(config).map_err(failed)?))
}

#[cfg(feature = "redis")]
async fn open_redis(url: &str) -> Result<Arc<dyn Backend>> {
    let failed = |failure| Error::failed("open", failure);
    let config = leasehold_redis::RedisConfig::parse(url).map_err(failed)?;
    let Some((old, new)) = config.dual() else {
        return leasehold_redis::connect(config).await.map_err(failed);
    };
    let new = leasehold_redis::connect(new).await.map_err(failed)?;
    let old = leasehold_redis::connect(old).await.map_err(failed)?;
    Ok(Arc::new(Dual::of(old, new).map_err(failed)?))
}

#[cfg(feature = "redis")]
async fn open_redlock(url: &str) -> Result<Arc<dyn Backend>> {
    let failed = |failure| Error::failed("open", failure);
    let config = leasehold_redis::RedlockConfig::parse(url).map_err(failed)?;
    let terms = QuorumConfig::new(config.min_ttl(), config.max_ttl());
    Ok(Arc::new(Quorum::over("redlock", config.members(), terms).await.map_err(failed)?))
}

#[cfg(feature = "etcd")]
async fn open_etcd(url: &str) -> Result<Arc<dyn Backend>> {
    let failed = |failure| Error::failed("open", failure);
    let config = leasehold_etcd::EtcdConfig::parse(url).map_err(failed)?;
    Ok(Arc::new(leasehold_etcd::EtcdBackend::connect(config).await.map_err(failed)?))
}

#[cfg(feature = "memcached")]
async fn open_memcached(url: &str) -> Result<Arc<dyn Backend>> {
    let failed = |failure| Error::failed("open", failure);
    let config = leasehold_memcached::MemcachedConfig::parse(url).map_err(failed)?;
    leasehold_memcached::connect(config, Arc::new(crate::SystemClock)).await.map_err(failed)
}

#[cfg(feature = "zookeeper")]
async fn open_zookeeper(url: &str) -> Result<Arc<dyn Backend>> {
    let failed = |failure| Error::failed("open", failure);
    let config = leasehold_zookeeper::ZooKeeperConfig::parse(url).map_err(failed)?;
    Ok(Arc::new(leasehold_zookeeper::ZooKeeperBackend::connect(config).await.map_err(failed)?))
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: &str) -> Result<Arc<dyn Backend>> {
    let failed = |failure| Error::failed("open", failure);
    let config = leasehold_postgres::PostgresConfig::parse(url).map_err(failed)?;
    leasehold_postgres::connect(config, Arc::new(crate::SystemClock)).await.map_err(failed)
}

#[cfg(feature = "mysql")]
async fn open_mysql(url: &str) -> Result<Arc<dyn Backend>> {
    let failed = |failure| Error::failed("open", failure);
    let config = leasehold_mysql::MySqlConfig::parse(url).map_err(failed)?;
    leasehold_mysql::connect(config, Arc::new(crate::SystemClock)).await.map_err(failed)
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(url: &str) -> Result<Arc<dyn Backend>> {
    let failed = |failure| Error::failed("open", failure);
    let config = leasehold_sqlite::SqliteConfig::parse(url).map_err(failed)?;
    leasehold_sqlite::connect(config, Arc::new(crate::clock::SystemClock)).await.map_err(failed)
}

/// Returns the memory of this name, which all clients of the process that are open at the same time share.
fn memory(name: &str) -> Arc<dyn Backend> {
    static NAMED: Mutex<Option<HashMap<String, Weak<MemoryBackend>>>> = Mutex::new(None);
    if name.is_empty() {
        return Arc::new(MemoryBackend::new());
    }
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    let named = named.get_or_insert_default();
    named.retain(|_, memory| memory.strong_count() > 0);
    if let Some(memory) = named.get(name).and_then(Weak::upgrade) {
        return memory;
    }
    let memory = Arc::new(MemoryBackend::new());
    named.insert(name.to_owned(), Arc::downgrade(&memory));
    memory
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

fn unknown(url: &str) -> Error {
    Error::new(ErrorKind::Invalid, "open", why_unknown(url, SCHEMES))
}

/// Explains a URL whose scheme this build does not know.
fn why_unknown(url: &str, schemes: &[Scheme]) -> String {
    let known: Vec<&str> =
        schemes.iter().filter(|scheme| scheme.is_built).map(|scheme| scheme.text).collect();
    let known = known.join(", ");
    // Only the scheme is repeated: what follows may hold a password.
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match schemes.iter().find(|known| known.is_named(scheme)) {
        Some(Scheme { feature, .. }) => format!(
            "the scheme `{scheme}:` needs the feature `{feature}` of the crate `leasehold`, which was built without: \
             cargo add leasehold --features {feature}; known are {known}"
        ),
        None if scheme.is_empty() => {
            format!("a store is named by a URL, a directory by file:///a/path; known are {known}")
        }
        None => {
            let meant = meant(url, scheme, schemes)
                .map(|meant| format!("; did you mean {meant}?"))
                .unwrap_or_default();
            format!("no store is known by the scheme `{scheme}:`{meant}; known are {known}")
        }
    }
}

/// Guesses the intended scheme: for the address of a server without a scheme, or for a scheme with a typo.
fn meant(url: &str, scheme: &str, schemes: &[Scheme]) -> Option<String> {
    let rest = url.split_once(':').map_or("", |(_, rest)| rest);
    let port = rest.split(['/', '?']).next().unwrap_or_default();
    if let Some((_, known)) = PORTS.iter().find(|(known, _)| *known == port) {
        return Some(format!("{known}://{scheme}:{port}"));
    }
    let names =
        schemes.iter().filter(|known| known.is_built).filter_map(|known| known.text.split(':').next());
    nearest(scheme, names).map(|name| format!("{name}:"))
}

/// The default ports of the servers.
const PORTS: &[(&str, &str)] = &[
    ("2181", "zk"),
    ("2379", "etcd"),
    ("3306", "mysql"),
    ("5432", "postgres"),
    ("6379", "redis"),
    ("11211", "memcached"),
];

/// Returns `true` if this build knows the scheme.
fn is_known(scheme: &str) -> bool {
    SCHEMES.iter().any(|known| known.is_built && known.is_named(scheme))
}

/// The beginning of the URL of a store.
struct Scheme {
    text: &'static str,
    feature: &'static str,
    is_built: bool,
}

impl Scheme {
    fn is_named(&self, scheme: &str) -> bool {
        self.text.split(':').next() == Some(scheme)
    }
}

/// The schemes that need a feature, and whether it is enabled.
macro_rules! schemes {
    ($($feature:literal: $($text:literal),+;)+) => {
        &[
            Scheme { text: "mem:", feature: "", is_built: true },
            Scheme { text: "file:", feature: "", is_built: true },
            $($(Scheme { text: $text, feature: $feature, is_built: cfg!(feature = $feature) }),+),+
        ]
    };
}

const SCHEMES: &[Scheme] = schemes! {
    "redis": "redis://", "rediss://", "redis+unix://", "redis+sentinel://", "rediss+sentinel://", "redis+cluster://",
        "rediss+cluster://", "redlock://", "redlocks://";
    "etcd": "etcd://", "etcds://";
    "memcached": "memcached://", "memcacheds://";
    "sqlite": "sqlite:";
    "zookeeper": "zk://", "zks://";
    "postgres": "postgres://", "postgresql://";
    "mysql": "mysql://", "mariadb://";
};

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_that_was_not_encoded_is_not_repeated() {
        for scheme in SCHEMES.iter().filter(|scheme| scheme.is_built && scheme.text.ends_with("://")) {
            for login in
                ["me:6?hunter2", "me:6?a=b&hunter2", "me@a:6?hunter2=", "me:6?hun/ter2", "6#hunter2?hunter2"]
            {
                let url = format!("{}{login}@h,i,j/n", scheme.text);
                let error = open_backend(&url).await.unwrap_err();
                let shown = format!("{error} {error:?}");
                assert!(error.kind() == ErrorKind::Invalid && !shown.contains("ter2"), "{url}: {shown}");
                assert!(shown.contains("%3F"), "{url}: {shown}");
            }
        }
        let error = open_backend("redis://h/?hunter=2").await.unwrap_err().to_string();
        assert!(error.contains("known are"), "text that cannot be a login is repeated: {error}");
    }

    #[test]
    fn the_page_of_open_names_every_scheme() {
        let page = include_str!("client.rs");
        for scheme in SCHEMES.iter().filter(|scheme| !matches!(scheme.text, "postgresql://" | "mariadb://")) {
            let is_there = page.lines().any(|line| {
                line.trim_start().starts_with("/// |") && line.contains(&format!("`{}", scheme.text))
            });
            assert!(is_there, "{}", scheme.text);
        }
    }

    #[test]
    fn mistyped_url_scheme_gets_a_suggestion() {
        let schemes =
            ["file:", "redis://", "etcd://"].map(|text| Scheme { text, feature: "", is_built: true });
        let why = |url| why_unknown(url, &schemes);
        assert!(why("reddis://h").contains("did you mean redis:?"), "{}", why("reddis://h"));
        assert!(
            why("127.0.0.1:6379").contains("did you mean redis://127.0.0.1:6379?"),
            "{}",
            why("127.0.0.1:6379")
        );
        for other in ["ftp://h", "consul://h", "h:80"] {
            assert!(!why(other).contains("did you mean"), "{}", why(other));
        }
    }

    #[test]
    fn store_not_compiled_in_is_refused_naming_its_feature() {
        let schemes = [
            Scheme { text: "file:", feature: "", is_built: true },
            Scheme { text: "zk://", feature: "zookeeper", is_built: false },
        ];
        let why = |url| why_unknown(url, &schemes);
        assert!(why("zk://a:secret@h").contains("--features zookeeper"), "{}", why("zk://h"));
        assert!(why("zookeeper://a:secret@h").contains("`zookeeper:`; known are file:"));
        assert!(!why("zk://a:secret@h").contains("secret"));
        assert!(why("/a/b").contains("file:///a/path; known are file:"));
    }
}
