//! The memcached servers of the kit do what their methods say.

use leasehold_testkit::MemcachedServer;

#[tokio::test]
async fn a_server_forgets_with_a_restart_and_with_a_flush() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    assert_eq!(server.url(), format!("memcached://{}", server.addr()));
    for forget in [true, false] {
        assert_eq!(server.ask("ms job 4\r\nheld", "\r\n").await.unwrap(), "HD\r\n");
        assert_eq!(server.ask("mg job v", "held\r\n").await.unwrap(), "VA 4\r\nheld\r\n");
        if forget {
            server.flush_all().await.unwrap()
        } else {
            server.restart().await.unwrap()
        }
        assert_eq!(server.ask("mg job v", "\r\n").await.unwrap(), "EN\r\n");
    }
    server.kill().unwrap();
    assert!(server.ask("mn", "MN\r\n").await.is_err());
    server.restart().await.unwrap();
    server.stop().unwrap();
    server.resume().unwrap();
    assert!(server.stat("uptime").await.unwrap() > 0);
    assert!(server.ask("nonsense", "\r\n").await.unwrap_err().to_string().contains("ERROR"));
}

#[tokio::test]
async fn a_full_server_evicts_or_refuses() {
    let Some(evicting) = MemcachedServer::builder().memory_mb(8).start_or_skip().await else { return };
    evicting.fill(80_000, 200).await.unwrap();
    assert!(evicting.stat("evictions").await.unwrap() > 0);

    let refusing = MemcachedServer::builder().memory_mb(8).without_evictions().start().await.unwrap();
    assert!(refusing.fill(80_000, 200).await.unwrap_err().to_string().contains("out of memory"));
    assert_eq!(refusing.stat("evictions").await.unwrap(), 0);
}

#[tokio::test]
async fn server_requires_a_login_and_supports_tls() {
    let builder = MemcachedServer::builder().login("me", "secret").tls();
    let Some(server) = builder.start_or_skip().await else { return };
    assert!(server.url().starts_with("memcached://me:secret@127.0.0.1:"));
    assert!(server.tls_url().unwrap().starts_with("memcacheds://me:secret@127.0.0.1:"));
    assert!(server.ca_path().unwrap().is_file());
    assert!(server.stat("curr_items").await.unwrap() == 0);
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut anonymous = tokio::net::TcpStream::connect(server.addr()).await.unwrap();
    anonymous.write_all(b"mg job v\r\n").await.unwrap();
    let mut answer = [0; 64];
    let length = anonymous.read(&mut answer).await.unwrap();
    assert!(answer[..length].starts_with(b"CLIENT_ERROR"), "{:?}", std::str::from_utf8(&answer[..length]));
}
