//! The URLs of all stores, and their options, as they are declared.

use leasehold_backend::url::StoreUrls;

use crate::local::FILE_URLS;

/// Returns the URLs of all stores of this build and their options, in Markdown: a section for each kind of
/// store, with a table of its URLs and a list of its options.
///
/// ```
/// let page = leasehold::url_options();
/// assert!(page.contains("**`network`**"));
/// ```
pub fn url_options() -> String {
    let section = |store: &&StoreUrls| format!("\n## {}\n\n{}", store.title, store.markdown());
    STORES.iter().map(section).collect()
}

/// The URLs of each kind of store.
const STORES: &[&StoreUrls] = &[
    &FILE_URLS,
    #[cfg(feature = "redis")]
    &leasehold_redis::URLS,
    #[cfg(feature = "redis")]
    &leasehold_redis::REDLOCK_URLS,
    #[cfg(feature = "etcd")]
    &leasehold_etcd::URLS,
    #[cfg(feature = "zookeeper")]
    &leasehold_zookeeper::URLS,
    #[cfg(feature = "postgres")]
    &leasehold_postgres::URLS,
    #[cfg(feature = "mysql")]
    &leasehold_mysql::URLS,
    #[cfg(feature = "memcached")]
    &leasehold_memcached::URLS,
    #[cfg(feature = "sqlite")]
    &leasehold_sqlite::URLS,
];

/// Returns the names of all declared schemes.
#[cfg(test)]
pub(super) fn declared_schemes() -> impl Iterator<Item = &'static str> {
    STORES.iter().flat_map(|store| store.schemes).map(|scheme| scheme.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leasehold_backend::url::{AnyOption, COMMON, Scheme};

    use super::*;

    /// Returns each scheme with its store.
    fn schemes() -> impl Iterator<Item = (&'static StoreUrls, &'static Scheme)> {
        STORES.iter().flat_map(|store| store.schemes.iter().map(|scheme| (*store, scheme)))
    }

    /// Returns the URL of a scheme with an option, and those without which it has no meaning.
    fn example(store: &StoreUrls, scheme: &Scheme, option: &dyn AnyOption) -> String {
        let mut base = scheme.example.to_owned();
        // Some stores refuse a password without a user.
        if option.name() == "password-file" && !base.contains('@') && !base.contains(":///") {
            base = base.replace("://", "://user@");
        }
        let mut url = format!("{base}?{}={}", option.name(), option.example());
        for (other, words) in option.conditions() {
            let declared = store.options_of(scheme.name).find(|declared| declared.name() == *other).unwrap();
            let value = words.first().copied().unwrap_or(declared.example());
            url += &format!("&{other}={value}");
        }
        url
    }

    fn refusal(store: &StoreUrls, url: &str) -> String {
        (store.check)(url).expect_err(url).to_string()
    }

    #[test]
    fn every_option_of_every_scheme_is_accepted_with_its_example() {
        for (store, scheme) in schemes() {
            assert!(scheme.example.starts_with(&format!("{}:", scheme.name)), "{}", scheme.example);
            (store.check)(scheme.example).unwrap();
            for option in store.options_of(scheme.name) {
                let url = example(store, scheme, option);
                (store.check)(&url).unwrap_or_else(|failure| panic!("{url}: {failure}"));
                assert!(!option.meaning().is_empty() && !option.example().is_empty(), "{url}");
                assert!(option.default_value().is_none_or(|value| option.check(value).is_ok()), "{url}");
            }
        }
    }

    #[test]
    fn unknown_repeated_and_invalid_options_are_refused() {
        for (store, scheme) in schemes() {
            let unknown = refusal(store, &format!("{}?no-such-option=1", scheme.example));
            for option in store.options_of(scheme.name) {
                let name = option.name();
                assert!(unknown.contains(name) && unknown.contains("known are"), "{unknown}");
                let url = example(store, scheme, option);
                let twice = refusal(store, &format!("{url}&{name}={}", option.example()));
                assert!(twice.contains(&format!("{name} is written twice")), "{twice}");
                let bad = refusal(store, &format!("{}?{name}=%07", scheme.example));
                assert!(bad.contains(&format!("{name}=\\u{{7}}: write ")), "{bad}");
                assert!(bad.contains(&format!("{name}={}", option.example())), "no example: {bad}");
                if name.len() > 3 {
                    let typo = refusal(store, &format!("{}?{name}z=1", scheme.example));
                    assert!(typo.contains(&format!("did you mean {name}?")), "{typo}");
                }
                for (other, _) in option.conditions() {
                    let declared = store.options.iter().find(|declared| declared.name() == *other);
                    assert!(
                        declared.is_some(),
                        "{name} of {} needs {other}, which is not declared",
                        store.title
                    );
                }
            }
        }
    }

    #[test]
    fn a_store_without_a_common_option_says_so() {
        for (store, scheme) in schemes() {
            for name in COMMON {
                if store.options_of(scheme.name).any(|option| option.name() == *name) {
                    continue;
                }
                let refusal = refusal(store, &format!("{}?{name}=1", scheme.example));
                assert!(refusal.contains(&format!("does not support {name}")), "{refusal}");
            }
        }
    }

    #[test]
    fn an_option_of_several_stores_is_a_common_one() {
        let mut stores: BTreeMap<&str, usize> = BTreeMap::new();
        for option in STORES.iter().flat_map(|store| store.options) {
            *stores.entry(option.name()).or_default() += 1;
        }
        for (name, count) in &stores {
            assert!(*count == 1 || COMMON.contains(name), "{name} is not in COMMON");
        }
        let all = cfg!(all(
            feature = "redis",
            feature = "postgres",
            feature = "mysql",
            feature = "etcd",
            feature = "zookeeper",
            feature = "memcached",
            feature = "sqlite"
        ));
        assert!(!all || COMMON.iter().all(|name| stores[name] > 1), "{stores:?}");
    }

    #[test]
    fn the_page_lists_what_is_declared_and_nothing_else() {
        let page = url_options();
        let listed = page.lines().filter(|line| line.starts_with("- **`"));
        let listed: Vec<&str> = listed.filter_map(|line| line.split('`').nth(1)).collect();
        let declared: Vec<&str> =
            STORES.iter().flat_map(|store| store.options).map(|option| option.name()).collect();
        assert_eq!(listed, declared);
        for store in STORES {
            assert!(page.contains(&format!("\n## {}\n", store.title)), "{}", store.title);
        }
    }
}
