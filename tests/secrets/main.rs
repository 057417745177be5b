//! Secrets stay secret, on every store: no public `Debug`, no text of an error and no event of `tracing`
//! shows the id of a claim, a token or a password.
//!
//! A program that knows the id of a claim can end it. So what a program may write to its log must not
//! have it, nor enough of it to guess the rest.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod failures;
mod logged;
mod logins;
mod things;
mod token;
mod written;

use leasehold_tests::stores;

macro_rules! on_each_store {
    ($($store:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $store() {
            logged::listen();
            if let Some(stores) = stores::$store().await {
                // All at once, since most of it waits: a lease has to end on each.
                let shown = stores.all.iter().map(|store| async {
                    things::show_no_id(store).await;
                    logins::are_not_repeated(&store.url).await;
                });
                futures_util::future::join_all(shown).await;
            }
        }
    )*};
}

on_each_store! {
    memory file sqlite redis redis_sentinel redis_cluster redlock etcd zookeeper memcached postgres mysql
}
