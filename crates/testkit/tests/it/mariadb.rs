//! MariaDB in all states that the kit can put it into.

use leasehold_testkit::{Data, MariaDbServer};

#[tokio::test]
async fn data_survive_a_kill_unless_they_are_to_be_lost() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql("CREATE TABLE t (a int); INSERT INTO t VALUES (7)").await.unwrap();
    server.kill().unwrap();
    assert!(server.sql("SELECT 1").await.is_err());
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(server.sql("SELECT a, 'b' FROM t").await.unwrap(), "7\tb\n");
    server.restart(Data::Lose).await.unwrap();
    let gone = server.sql("SELECT a FROM t").await.unwrap_err();
    assert!(gone.to_string().contains("1146"), "{gone}");
}

#[tokio::test]
async fn a_replica_follows_and_is_promoted() {
    let Some(primary) = MariaDbServer::builder().replicated().start_or_skip().await else { return };
    primary.sql("CREATE TABLE t (a int)").await.unwrap();
    let replica = primary.replica().await.unwrap();
    primary.sql("INSERT INTO t VALUES (7)").await.unwrap();
    replica.await_replication(&primary).await.unwrap();
    assert_eq!(replica.sql("SELECT a, @@read_only FROM t").await.unwrap(), "7\t1\n");
    primary.kill().unwrap();
    replica.promote().await.unwrap();
    assert_eq!(replica.sql("SELECT @@read_only").await.unwrap(), "0\n");
}
