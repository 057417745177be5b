//! The connections that a client opens while the server does not answer.

use std::time::Duration;

use crate::common::*;
use leasehold_conformance::dials::{self, start_silent, tasks_dial_one_at_a_time};
use leasehold_testkit::{MariaDbServer, Proxy};

const TASKS: usize = 20;
const TIMEOUT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn tasks_of_a_silent_server_dial_one_at_a_time() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let silent = start_silent().await.unwrap();
    // The tables may take a busy server longer than the short timeout.
    for method in ["", "&method=for-update", "&method=get-lock"] {
        drop(open(&format!("{}?timeout=30s{method}", server.url())).await);
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let url = format!("{}?timeout={TIMEOUT:?}&connections={TASKS}{method}", server.url_at(proxy.addr()));
        let backend = open(&url).await;
        let way = dials::Way {
            silence: || {
                proxy.set_upstream(silent);
                proxy.cut().unwrap();
                proxy.heal().unwrap();
            },
            heal: || proxy.set_upstream(server.addr()),
            count: || (proxy.connections(), proxy.accepted()),
        };
        tasks_dial_one_at_a_time(backend, TASKS, TIMEOUT, way).await;
    }
}
