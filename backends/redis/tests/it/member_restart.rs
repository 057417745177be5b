//! One server of a quorum that restarts: it is never taken for a server that has forgotten nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use leasehold_core::quorum::{Answer, Member, RequestStamp, Vote};
use leasehold_core::{Claim, Effect, Fence};
use leasehold_redis::{RedisConfig, RedisNode};
use leasehold_testkit::{Appendonly, Data, RedisServer, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

fn stamp(number: u64) -> RequestStamp {
    RequestStamp::numbered(7, number)
}

/// Asks until there is an answer: the first requests may meet the end of the old connection.
async fn prepared(member: &RedisNode, claim: &Claim, last: Option<Fence>) -> Answer {
    for number in 1.. {
        match member.prepare(claim, stamp(number), last).await {
            Ok(answer) => return answer,
            Err(failure) if number > 100 => panic!("{failure}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    unreachable!("it counts without end")
}

/// Marks the server, and locks a resource on it. Returns the answer.
async fn armed(member: &RedisNode, claim: &Claim) -> Answer {
    let state = member.state().await.unwrap();
    assert!(member.set_epoch(&state, 5).await.unwrap());
    let answer = member.prepare(claim, stamp(1), None).await.unwrap();
    assert_eq!(answer.state.armed(), Some(5));
    assert!(member.accept(claim, stamp(1), &answer.state.run, Fence::new(5, 1, 0)).await.unwrap());
    assert!(member.release(&[claim]).await[0].as_ref().unwrap());
    answer
}

/// Asserts that a server that restarted with its data, under a client that knew it before, has no vote.
async fn assert_restart_is_noticed(server: &RedisServer, member: &RedisNode) {
    let claim = mutex("job");
    let before = armed(member, &claim).await;
    server.restart(Data::Keep).await.unwrap();
    // The client returns, so a server that has forgotten nothing would take the next fence at once.
    let after = prepared(member, &claim, Some(Fence::new(5, 1, 0))).await;
    assert_eq!((after.state.armed(), after.state.mark), (None, before.state.mark));
    assert!(matches!(after.vote, Vote::Yours { fence: None, .. }), "it took a fence: {:?}", after.vote);
    assert!(member.release(&[&claim]).await[0].as_ref().unwrap());
    // Nor does it take the fence of a second round whose first one it answered before.
    let (second, run) = (stamp(1000), &before.state.run);
    member.prepare(&claim, second, None).await.unwrap();
    assert!(!member.accept(&claim, second, run, Fence::new(5, 2, 0)).await.unwrap());
    // A mark of the run that ended does not arm it.
    let state = member.state().await.unwrap();
    assert_eq!(state.armed(), None);
    let outdated = leasehold_core::quorum::MemberState { run: run.clone(), ..state.clone() };
    assert!(!member.set_epoch(&outdated, 6).await.unwrap());
    assert!(member.set_epoch(&state, 6).await.unwrap());
    assert_eq!(member.state().await.unwrap().armed(), Some(6));
}

/// Returns the member at a URL, with time for a server that waits for its disk.
fn node(url: &str) -> RedisNode {
    RedisNode::new(RedisConfig::parse(&format!("{url}?timeout=30s")).unwrap())
}

async fn durable() -> Option<RedisServer> {
    RedisServer::builder().persistence(Appendonly::Always).start_or_skip().await
}

#[tokio::test]
async fn restart_is_noticed_by_a_client_that_knew_the_server() {
    let Some(server) = durable().await else { return };
    let member = node(&server.url());
    assert_restart_is_noticed(&server, &member).await;
}

/// Passes bytes on, and connects to the server anew, behind the back of its client, when the server ends.
async fn relay(listener: TcpListener, port: u16) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut from_client, mut to_client) = client.into_split();
            loop {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                };
                let (mut from_server, mut to_server) = server.into_split();
                tokio::select! {
                    ended = copy(&mut from_client, &mut to_server) => if ended.is_ok() { return },
                    _ = copy(&mut from_server, &mut to_client) => {}
                }
            }
        });
    }
}

/// Returns the server as a member that is reached through such a relay.
async fn behind_relay(server: &RedisServer) -> RedisNode {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(relay(listener, server.port()));
    node(&url)
}

#[tokio::test]
async fn restart_that_a_proxy_hides_is_noticed() {
    let Some(server) = durable().await else { return };
    let member = behind_relay(&server).await;
    assert_restart_is_noticed(&server, &member).await;
}

/// Passes bytes on. At the next `EVAL` it restarts the server first, and gives it to the new run, behind the back of the
/// client, if it is asked to. Answers wait until they may be delivered.
async fn relay_to_the_next_run(
    listener: TcpListener,
    server: Arc<RedisServer>,
    is_asked: Arc<AtomicBool>,
    delivers: watch::Receiver<bool>,
) {
    while let Ok((mut client, _)) = listener.accept().await {
        let (server, is_asked, mut delivers) = (server.clone(), is_asked.clone(), delivers.clone());
        tokio::spawn(async move {
            let mut upstream = TcpStream::connect(server.addr()).await?;
            let (mut request, mut reply) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                tokio::select! {
                    count = client.read(&mut request) => {
                        let bytes = &request[..count?];
                        let is_text = bytes.windows(8).any(|part| part == b"\r\nEVAL\r\n");
                        if is_text && is_asked.swap(false, Ordering::SeqCst) {
                            server.restart(Data::Keep).await.unwrap();
                            upstream = TcpStream::connect(server.addr()).await?;
                        }
                        if bytes.is_empty() {
                            return std::io::Result::Ok(());
                        }
                        upstream.write_all(bytes).await?;
                    }
                    count = upstream.read(&mut reply) => match count? {
                        0 => return Ok(()),
                        count => {
                            delivers.wait_for(|delivers| *delivers).await.map_err(std::io::Error::other)?;
                            client.write_all(&reply[..count]).await?;
                        }
                    }
                }
            }
        });
    }
}

/// The text of a script is on its way while the server restarts: the new run learns a script of the earlier one.
#[tokio::test]
async fn restart_in_the_moment_of_loading_a_script_is_noticed() {
    let Some(server) = durable().await else { return };
    let (server, is_asked) = (Arc::new(server), Arc::new(AtomicBool::new(false)));
    let (_delivering, delivers) = watch::channel(true);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(relay_to_the_next_run(listener, server.clone(), is_asked.clone(), delivers));
    let member = RedisNode::new(RedisConfig::parse(&format!("{url}?timeout=30s")).unwrap());
    let claim = mutex("job");
    armed(&member, &claim).await;
    server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    is_asked.store(true, Ordering::SeqCst);
    let failure = member.prepare(&claim, stamp(2), Some(Fence::new(5, 1, 0))).await.unwrap_err();
    assert!(!is_asked.load(Ordering::SeqCst), "no text was sent");
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
    // The script is known now, and the connection is another one.
    let after = prepared(&member, &claim, None).await;
    assert_eq!(after.state.armed(), None);
}

/// Nobody hears whether the new run has learned the script: the answer comes too late, and nothing is asked after it.
#[tokio::test]
async fn restart_behind_a_script_without_an_answer_in_time_is_noticed() {
    let Some(server) = durable().await else { return };
    let (server, is_asked) = (Arc::new(server), Arc::new(AtomicBool::new(false)));
    let (delivering, delivers) = watch::channel(true);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(relay_to_the_next_run(listener, server.clone(), is_asked.clone(), delivers));
    let member = RedisNode::new(RedisConfig::parse(&format!("{url}?timeout=10s")).unwrap());
    let claim = mutex("job");
    armed(&member, &claim).await;
    server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    is_asked.store(true, Ordering::SeqCst);
    // The answers before that of the text are delivered.
    let holding = async {
        until("the text of the script is on its way", async || !is_asked.load(Ordering::SeqCst)).await;
        delivering.send_replace(false);
    };
    let (asked, ()) = tokio::join!(member.prepare(&claim, stamp(2), Some(Fence::new(5, 1, 0))), holding);
    let failure = asked.unwrap_err();
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
    delivering.send_replace(true);
    let after = prepared(&member, &claim, Some(Fence::new(5, 1, 0))).await;
    assert_eq!(after.state.armed(), None, "the script of the earlier run answered for it");
}

/// A client that has not heard of the restart must not be served because another one has.
#[tokio::test]
async fn restart_that_a_proxy_hides_is_noticed_by_each_client() {
    let Some(server) = durable().await else { return };
    let member = behind_relay(&server).await;
    let claim = mutex("job");
    armed(&member, &claim).await;
    server.restart(Data::Keep).await.unwrap();
    // The other client makes the server know all scripts of its present run.
    let other = node(&server.url());
    let theirs = mutex("other");
    assert_eq!(prepared(&other, &theirs, None).await.state.armed(), None);
    let after = prepared(&member, &claim, Some(Fence::new(5, 1, 0))).await;
    assert_eq!(after.state.armed(), None);
    assert!(matches!(after.vote, Vote::Yours { fence: None, .. }), "it took a fence: {:?}", after.vote);
}
