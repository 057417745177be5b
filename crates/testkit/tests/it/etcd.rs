//! The etcd servers of the kit do what their methods say.

use leasehold_testkit::EtcdCluster;

#[tokio::test]
async fn member_is_replaced_by_another_that_has_the_data() {
    let Some(mut cluster) = EtcdCluster::builder().members(3).start_or_skip().await else { return };
    let ids = |cluster: &EtcdCluster| -> Vec<String> {
        let listed = cluster.etcdctl(&["member", "list"]).unwrap();
        listed.lines().map(|line| line.split(", ").next().unwrap().to_owned()).collect()
    };
    cluster.etcdctl(&["put", "job", "held"]).unwrap();
    let (before, addr) = (ids(&cluster), cluster.addr(1));
    cluster.replace(1).await.unwrap();
    let after = ids(&cluster);
    assert_eq!((after.len(), cluster.members(), cluster.addr(1)), (3, 3, addr));
    assert_eq!(after.iter().filter(|id| before.contains(id)).count(), 2, "{before:?} {after:?}");
    // The new one counts: without one of the others, two of three are left.
    cluster.kill(0).unwrap();
    cluster.leader().await.unwrap();
    assert!(cluster.etcdctl(&["get", "job"]).unwrap().contains("held"));
}
