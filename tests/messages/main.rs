//! The texts of errors and of warnings, as users read them, on every store.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod advice;
mod errors;
mod unused_ttl;

use leasehold_tests::stores;

macro_rules! on_each_store {
    ($($store:ident)*) => {$(
        #[tokio::test]
        async fn $store() {
            if let Some(stores) = stores::$store().await {
                // One after the other, since each listens to the warnings of this thread.
                for store in &stores.all {
                    unused_ttl::is_reported_once(&store.url).await;
                }
                let others = stores.all.iter().map(|store| async {
                    advice::fits_the_store(&store.url).await;
                    errors::say_everything_once(&store.url).await;
                });
                futures_util::future::join_all(others).await;
            }
        }
    )*};
}

on_each_store! {
    memory file sqlite redis redis_sentinel redis_cluster redlock etcd zookeeper memcached postgres mysql
}
