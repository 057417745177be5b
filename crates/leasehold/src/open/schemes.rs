//! The table of URL schemes: which kind of store each names, and the error for a URL of none.
//!
//! Ground rules: a store that this build has no feature for keeps its row, so that the error names the feature.

use leasehold_backend::url::meant as nearest;

use super::stores::{self, Store, scheme_of};
use crate::error::{Error, ErrorKind, Result};

/// A kind of store, and the beginnings of its URLs.
struct Kind {
    schemes: &'static [&'static str],
    /// The feature of this crate that it needs; empty if it needs none.
    feature: &'static str,
    /// The default port of its servers.
    port: Option<&'static str>,
    /// The store; `None` if the feature is not enabled.
    store: Option<&'static dyn Store>,
}

/// Makes the row of a store that needs a feature.
macro_rules! kind {
    ($feature:literal, $store:ident, $port:expr, $($scheme:literal),+) => {
        Kind {
            schemes: &[$($scheme),+],
            feature: $feature,
            port: $port,
            #[cfg(feature = $feature)]
            store: Some(&stores::$store),
            #[cfg(not(feature = $feature))]
            store: None,
        }
    };
}

/// All kinds of stores, in the order in which errors name them.
#[rustfmt::skip]
const KINDS: &[Kind] = &[
    Kind { schemes: &["mem:"], feature: "", port: None, store: Some(&stores::Memory) },
    Kind { schemes: &["file:"], feature: "", port: None, store: Some(&stores::Files) },
    kind!("redis", Redis, Some("6379"), "redis://", "redis+unix://", "redis+sentinel://", "redis+cluster://"),
    kind!("redis-tls", Redis, None, "rediss://", "rediss+sentinel://", "rediss+cluster://"),
    kind!("redis", Redlock, None, "redlock://"),
    kind!("redis-tls", Redlock, None, "redlocks://"),
    kind!("etcd", Etcd, Some("2379"), "etcd://", "etcds://"),
    kind!("memcached", Memcached, Some("11211"), "memcached://", "memcacheds://"),
    kind!("sqlite", Sqlite, None, "sqlite:"),
    kind!("zookeeper", ZooKeeper, Some("2181"), "zk://", "zks://"),
    kind!("postgres", Postgres, Some("5432"), "postgres://", "postgresql://"),
    kind!("mysql", MySql, Some("3306"), "mysql://", "mariadb://"),
];

impl Kind {
    fn has(&self, scheme: &str) -> bool {
        self.schemes.iter().any(|known| scheme_of(known) == scheme)
    }
}

/// Returns the store that this URL names.
pub(super) fn store_of(url: &str) -> Result<&'static dyn Store> {
    let kind = KINDS.iter().find(|kind| kind.has(scheme_of(url)));
    let store = kind.and_then(|kind| kind.store);
    store.ok_or_else(|| Error::new(ErrorKind::Invalid, "open", why_unknown(url, KINDS)))
}

/// Returns the schemes of these kinds that this build knows, each as its URLs begin.
fn built(kinds: &[Kind]) -> impl Iterator<Item = &'static str> {
    kinds.iter().filter(|kind| kind.store.is_some()).flat_map(|kind| kind.schemes).copied()
}

/// Explains a URL whose scheme this build does not know.
fn why_unknown(url: &str, kinds: &[Kind]) -> String {
    let known = built(kinds).collect::<Vec<_>>().join(", ");
    // Only the scheme is repeated: what follows may hold a password.
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match kinds.iter().find(|kind| kind.has(scheme)) {
        Some(Kind { feature, .. }) => format!(
            "the scheme `{scheme}:` needs the feature `{feature}` of the crate `leasehold`, which was built without: \
             cargo add leasehold --features {feature}; known are {known}"
        ),
        None if scheme.is_empty() => {
            format!("a store is named by a URL, a directory by file:///a/path; known are {known}")
        }
        None => {
            let meant =
                meant(url, scheme, kinds).map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
            format!("no store is known by the scheme `{scheme}:`{meant}; known are {known}")
        }
    }
}

/// Guesses the intended scheme: for the address of a server without a scheme, or for a scheme with a typo.
fn meant(url: &str, scheme: &str, kinds: &[Kind]) -> Option<String> {
    let rest = url.split_once(':').map_or("", |(_, rest)| rest);
    let port = rest.split(['/', '?']).next().unwrap_or_default();
    if let Some(known) =
        kinds.iter().find(|kind| kind.port == Some(port)).and_then(|kind| kind.schemes.first())
    {
        return Some(format!("{known}{scheme}:{port}"));
    }
    let name = nearest(scheme, built(kinds).map(scheme_of))?;
    built(kinds).find(|known| scheme_of(known) == name).map(str::to_owned)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::open::urls::declared_schemes;

    /// Returns the schemes that this build knows, each as its URLs begin.
    pub(in crate::open) fn all_built() -> impl Iterator<Item = &'static str> {
        built(KINDS)
    }

    #[test]
    fn the_page_of_open_names_every_scheme() {
        let page = include_str!("../client.rs");
        let schemes = KINDS.iter().flat_map(|kind| kind.schemes);
        for scheme in schemes.filter(|scheme| !matches!(**scheme, "postgresql://" | "mariadb://")) {
            let is_there = page
                .lines()
                .any(|line| line.trim_start().starts_with("/// |") && line.contains(&format!("`{scheme}")));
            assert!(is_there, "{scheme}");
        }
    }

    #[test]
    fn every_scheme_of_this_build_is_declared_with_its_options() {
        let mut declared: Vec<&str> = declared_schemes().chain(["mem"]).collect();
        // The backend of Redis declares its schemes with TLS in a build without TLS as well.
        let without_tls = |kind: &&Kind| cfg!(feature = "redis") && kind.feature == "redis-tls";
        let kinds = KINDS.iter().filter(|kind| kind.store.is_some() || without_tls(kind));
        let mut built: Vec<&str> =
            kinds.flat_map(|kind| kind.schemes).map(|known| scheme_of(known)).collect();
        declared.sort_unstable();
        built.sort_unstable();
        assert_eq!(built, declared);
    }

    fn built_kind(schemes: &'static [&'static str], port: Option<&'static str>) -> Kind {
        Kind { schemes, feature: "", port, store: Some(&stores::Memory) }
    }

    #[test]
    fn mistyped_url_scheme_gets_a_suggestion() {
        let kinds = [
            built_kind(&["file:"], None),
            built_kind(&["redis://"], Some("6379")),
            built_kind(&["etcd://"], Some("2379")),
        ];
        let why = |url| why_unknown(url, &kinds);
        assert!(why("reddis://h").contains("did you mean redis://?"), "{}", why("reddis://h"));
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
        let kinds = [
            built_kind(&["file:"], None),
            Kind { schemes: &["zk://"], feature: "zookeeper", port: None, store: None },
        ];
        let why = |url| why_unknown(url, &kinds);
        assert!(why("zk://a:secret@h").contains("--features zookeeper"), "{}", why("zk://h"));
        assert!(why("zookeeper://a:secret@h").contains("`zookeeper:`; known are file:"));
        assert!(!why("zk://a:secret@h").contains("secret"));
        assert!(why("/a/b").contains("file:///a/path; known are file:"));
    }
}
