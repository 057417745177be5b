//! The rights that each way of using a server needs, with a user who has no others; and a proxy that
//! refuses the rest.

use std::time::Duration;

use crate::common::any::{freed, got, release, release_until_answered, renewed, take};
use crate::common::{LIMIT, claim_of, in_the_end, is_before_7, no_patience, open, patience};
use leasehold_core::{
    Backend, Claim, DirectReply, Effect, Failure, FailureKind, Moment, Put, Registers, Release, Resource,
    Share, Step,
};
use leasehold_redis::RedisConfig;
use leasehold_testkit::{Data, Directory, Port, Process, RedisServer, require};

const MODES: [&str; 4] = ["wait=poll", "dialect=plain", "dialect=python-redis-lock", "dialect=redisson"];

/// Rights that this test does not need: they are for what only the profile asks, for another database,
/// for a server that forgets, for one that has become a replica, and for what lasts longer than this.
const SPARED: [&str; 9] = [
    "+select",
    "+info",
    "+config|get",
    "+script|load",
    "+unsubscribe",
    "+hmget",
    "+zrank",
    "+zcard",
    "+hdel",
];

/// Takes, is refused, renews, looks, lists, waits and releases.
async fn works(url: &str, shares: &[Share], listed: bool) -> Result<(), Failure> {
    let backend = leasehold_redis::connect(RedisConfig::parse(url).unwrap()).await?;
    let backend = &*backend;
    for share in shares {
        let ttl = Duration::from_secs(10);
        let (holder, waiter) = (claim_of("job", *share, ttl), claim_of("job", Share::MUTEX, ttl));
        backend.contend(&holder, &no_patience()).await?;
        assert!(got(backend, &holder).await);
        // A renewal in the very millisecond of the grant has nothing to extend, and needs fewer rights.
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(renewed(backend, &holder).await && !got(backend, &waiter).await);
        assert_eq!(backend.inspect(&holder.resource, None, &no_patience()).await?.holders.len(), 1);
        if listed {
            assert_eq!(backend.list("job", None, 5).await?.len(), 1);
        }
        let limit = patience(Duration::from_secs(8));
        let releasing = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(freed(backend, &holder).await);
        };
        assert!(tokio::join!(take(backend, &waiter, &limit), releasing).0.is_some());
        assert!(got(backend, &waiter).await, "the same claim asks again");
        assert!(freed(backend, &waiter).await);
    }
    if let Some(registers) = backend.registers() {
        kept_and_removed(registers).await?;
    }
    Ok(())
}

/// Writes a register, and removes what was written.
async fn kept_and_removed(registers: &dyn Registers) -> Result<(), Failure> {
    let at = Resource::new("job").unwrap();
    let written = Put { value: Some(b"value".to_vec()), keep: Some(Duration::from_secs(60)) };
    let nothing = registers.read(&at).await?;
    let stamp = registers.swap(&at, &nothing.stamp, &written).await?;
    let removed = registers.swap(&at, &stamp.unwrap(), &Put { value: None, keep: None }).await?;
    assert!(removed.is_some());
    Ok(())
}

fn shares(mode: &str) -> &'static [Share] {
    if mode == "dialect=redisson" { &[Share::MUTEX, Share::READER, Share::WRITER] } else { &[Share::MUTEX] }
}

async fn allow(server: &RedisServer, rules: &str) {
    let args = ["ACL", "SETUSER", "jobs", "reset", "on", ">secret"].into_iter().chain(rules.split(' '));
    server.command(&args.collect::<Vec<_>>()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_works_with_its_acl_rules_and_with_no_fewer() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    for mode in MODES {
        let url = format!("redis://jobs:secret@{}?timeout=10s&{mode}", server.addr());
        let rules = RedisConfig::parse(&url).unwrap().acl_rules();
        allow(&server, &rules).await;
        works(&url, shares(mode), true).await.unwrap();
        if mode == "wait=poll" {
            let config = RedisConfig::parse(&url).unwrap();
            let swept = leasehold_redis::sweep(config, Duration::ZERO).await.unwrap();
            assert_eq!((swept.seen, swept.removed), (1, 1), "nothing holds or waits");
        }
        for right in rules.split(' ').filter(|rule| rule.starts_with('+') && !SPARED.contains(rule)) {
            server.flushall().await.unwrap();
            server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
            allow(&server, &rules.replace(&format!(" {right} "), " ")).await;
            let running = {
                let url = url.clone();
                tokio::spawn(async move { works(&url, shares(mode), true).await })
            };
            // An error that is not the failure of a call comes from one of the test's assertions.
            let outcome = tokio::time::timeout(LIMIT, running).await.unwrap();
            assert!(!matches!(outcome, Ok(Ok(()))), "{mode}: {right} is not needed");
            if let Ok(Err(failure)) = outcome {
                assert_eq!(failure.kind, FailureKind::Denied, "{mode} {right}: {failure}");
            }
        }
        server.flushall().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_right_is_reported_with_the_acl_rules_of_the_dialect() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    for mode in MODES {
        let url = format!("redis://jobs:secret@{}?{mode}", server.addr());
        let rules = RedisConfig::parse(&url).unwrap().acl_rules();
        allow(&server, &rules.replace(" +set ", " ")).await;
        let backend = leasehold_redis::connect(RedisConfig::parse(&url).unwrap()).await.unwrap();
        let share = if mode == "dialect=redisson" { Share::READER } else { Share::MUTEX };
        let claim = claim_of("job", share, Duration::from_secs(10));
        let failure = backend.contend(&claim, &no_patience()).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
        assert!(failure.detail().contains("+set"), "{failure}");
        if mode != "wait=poll" {
            assert!(failure.detail().contains(&rules), "{failure}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_refused_changes_no_answer() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let url = format!("redis://jobs:secret@{}", server.addr());
    let config = || RedisConfig::parse(&url).unwrap();
    let rules = config().acl_rules();
    allow(&server, &rules).await;
    let backend = leasehold_redis::connect(config()).await.unwrap();
    let (holder, waiter) = (
        claim_of("job", Share::MUTEX, Duration::from_secs(10)),
        claim_of("job", Share::MUTEX, Duration::from_secs(10)),
    );
    assert!(got(&*backend, &holder).await);
    server.command(&["ACL", "SETUSER", "jobs", "resetchannels"]).await.unwrap();
    assert!(freed(&*backend, &holder).await);
    // The right was checked less than a second ago: it is checked again from then on.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    // A grant whose release could not be published is refused, and nothing is written.
    let answer = backend.contend(&waiter, &no_patience()).await;
    if is_before_7(&server).await {
        assert!(matches!(answer, Ok(leasehold_core::Step::Granted(_))), "{answer:?}");
        return;
    }
    let failure = answer.unwrap_err();
    assert_eq!(
        (failure.kind, failure.effect),
        (FailureKind::Denied, leasehold_core::Effect::None),
        "{failure}"
    );
    assert!(failure.detail().contains("PUBLISH") && failure.detail().contains("channel"), "{failure}");
    assert!(backend.inspect(&waiter.resource, None, &no_patience()).await.unwrap().holders.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn right_to_publish_is_checked_for_the_channel_of_the_lock() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let url = format!("redis://jobs:secret@{}", server.addr());
    let rules = RedisConfig::parse(&url).unwrap().acl_rules();
    allow(&server, &rules.replace("&{lh:*", "&{lh:job}:wake")).await;
    let backend = leasehold_redis::connect(RedisConfig::parse(&url).unwrap()).await.unwrap();
    let [job, other] = ["job", "other"].map(|name| claim_of(name, Share::MUTEX, Duration::from_secs(10)));
    if !is_before_7(&server).await {
        assert_eq!(backend.contend(&other, &no_patience()).await.unwrap_err().kind, FailureKind::Denied);
    }
    // Once it is there, it is not checked again within a second.
    assert!(got(&*backend, &job).await && freed(&*backend, &job).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_the_redisson_dialect_that_is_refused_changes_no_answer() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let url = format!("redis://jobs:secret@{}?dialect=redisson", server.addr());
    allow(&server, &RedisConfig::parse(&url).unwrap().acl_rules()).await;
    let backend = leasehold_redis::connect(RedisConfig::parse(&url).unwrap()).await.unwrap();
    let holder = claim_of("job", Share::MUTEX, Duration::from_secs(10));
    assert!(got(&*backend, &holder).await);
    server.command(&["ACL", "SETUSER", "jobs", "resetchannels"]).await.unwrap();
    assert!(freed(&*backend, &holder).await);
}

/// Otherwise the Java threads that wait would sleep until the lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn user_who_may_not_publish_is_granted_no_lock_of_redisson() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    if is_before_7(&server).await {
        return;
    }
    let url = format!("redis://jobs:secret@{}?dialect=redisson", server.addr());
    let rules = RedisConfig::parse(&url).unwrap().acl_rules();
    for (share, channel) in [
        (Share::MUTEX, "&redisson_lock__channel:*"),
        (Share::READER, "&redisson_rwlock:*"),
        (Share::WRITER, "&redisson_rwlock:*"),
    ] {
        allow(&server, &rules.replace(&format!(" {channel} "), " ")).await;
        let backend = leasehold_redis::connect(RedisConfig::parse(&url).unwrap()).await.unwrap();
        let [claim, other] = [(); 2].map(|()| claim_of("job", share, Duration::from_secs(30)));
        let is_refused = async |claim| {
            let failure = backend.contend(claim, &no_patience()).await.unwrap_err();
            assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None), "{failure}");
            assert!(failure.detail().contains("PUBLISH"), "{share}: {failure}");
            assert!(failure.detail().contains(&rules), "{failure}");
        };
        is_refused(&claim).await;
        assert_eq!(keys(&server).await, 0, "{share}");
        allow(&server, &rules).await;
        assert!(got(&*backend, &claim).await);
        allow(&server, &rules.replace(&format!(" {channel} "), " ")).await;
        assert!(got(&*backend, &claim).await && renewed(&*backend, &claim).await, "{share}: it holds");
        is_refused(&other).await;
        assert!(freed(&*backend, &claim).await);
        server.flushall().await.unwrap();
    }
}

/// The key of a reader's end is not declared, so it is refused while the script runs.
#[tokio::test(flavor = "multi_thread")]
async fn refused_reader_of_redisson_leaves_no_lock() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    if is_before_7(&server).await {
        return;
    }
    let url = format!("redis://jobs:secret@{}?dialect=redisson&key-prefix=app:", server.addr());
    let rules = RedisConfig::parse(&url).unwrap().acl_rules();
    allow(&server, &rules.replace(" ~{app:* ", " ")).await;
    let backend = leasehold_redis::connect(RedisConfig::parse(&url).unwrap()).await.unwrap();
    let claim = claim_of("job", Share::READER, Duration::from_secs(10));
    let failure = backend.contend(&claim, &no_patience()).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None), "{failure}");
    assert!(failure.detail().contains(&rules), "{failure}");
    let there = server.command(&["EXISTS", "app:job"]).await.unwrap();
    assert_eq!(there, leasehold_testkit::Reply::Int(0));
    allow(&server, &rules).await;
    assert!(got(&*backend, &claim).await && freed(&*backend, &claim).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn user_without_the_publish_right_is_refused_at_once() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let url = format!("redis://jobs:secret@{}", server.addr());
    let rules = RedisConfig::parse(&url).unwrap().acl_rules();
    allow(&server, &rules.replace(" +publish", " ")).await;
    if is_before_7(&server).await {
        return;
    }
    let backend = leasehold_redis::connect(RedisConfig::parse(&url).unwrap()).await.unwrap();
    let failure =
        backend.contend(&claim_of("job", Share::MUTEX, Duration::from_secs(10)), &no_patience()).await;
    assert!(failure.unwrap_err().detail().contains("PUBLISH"));
    let findings = backend.diagnose(Duration::from_secs(10)).await;
    assert!(
        findings.iter().any(|finding| finding.severity == leasehold_core::Severity::Broken),
        "{findings:?}"
    );
}

/// twemproxy: it distributes keys over its servers, knows few commands, and ends the connection at others.
struct Twemproxy {
    port: Port,
    _process: Process,
}

impl Twemproxy {
    /// Starts it in front of servers, with these lines in its configuration; `None` if it is not installed.
    async fn start_or_skip(servers: &[RedisServer], lines: &str) -> Option<Twemproxy> {
        let program = require::or_skip("nutcracker", require::program("nutcracker", "nutcracker"))?;
        let (port, stats) = (Port::take().unwrap(), Port::take().unwrap());
        let directory = Directory::create("nutcracker").unwrap();
        let named: String = servers.iter().map(|server| format!("   - {}:1\n", server.addr())).collect();
        let text = format!(
            "locks:\n  listen: {}\n  redis: true\n  hash: murmur\n  hash_tag: \"{{}}\"\n  distribution: ketama\n\
             {lines}  servers:\n{named}",
            port.addr()
        );
        let config = directory.path().join("nutcracker.yml");
        std::fs::write(&config, text).unwrap();
        let args = ["-c", config.to_str().unwrap(), "-a", "127.0.0.1", "-s", &stats.number().to_string()]
            .map(String::from);
        let process = Process::spawn(&program, args, directory).unwrap();
        for _ in 0..200 {
            if tokio::net::TcpStream::connect(port.addr()).await.is_ok() {
                break;
            }
            assert!(process.exited().is_none());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some(Twemproxy { port, _process: process })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_proxy_that_refuses_and_shards() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        let Some(server) = RedisServer::start_or_skip().await else { return };
        servers.push(server);
    }
    let Some(proxy) = Twemproxy::start_or_skip(&servers, "").await else { return };
    for mode in ["wait=poll", "wait=poll&order=unordered", "dialect=plain"] {
        let url = format!("redis://{}?{mode}&timeout=30s", proxy.port.addr());
        works(&url, &[Share::MUTEX], false).await.unwrap();
        // Resources of all servers, renewed and released together.
        let backend = leasehold_redis::connect(RedisConfig::parse(&url).unwrap()).await.unwrap();
        let claims: Vec<_> =
            (0..40).map(|n| claim_of(&format!("r{n}"), Share::MUTEX, Duration::from_secs(60))).collect();
        for claim in &claims {
            assert!(got(&*backend, claim).await);
        }
        for server in &servers {
            assert!(keys(server).await > 0);
            // As one does that was restarted.
            server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        }
        let proof = leasehold_core::Proof::none();
        let batch: Vec<_> =
            claims.iter().map(|claim| leasehold_core::Renew { claim, proof: &proof }).collect();
        for renewal in backend.renew(&batch).await {
            assert!(matches!(renewal, leasehold_core::Renewal::Renewed), "{mode}: {renewal:?}");
        }
        for server in &servers {
            server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        }
        for release in backend.release(&claims.iter().collect::<Vec<_>>()).await {
            assert!(matches!(release, leasehold_core::Release::Freed), "{mode}: {release:?}");
        }
        for server in &servers {
            server.flushall().await.unwrap();
        }
    }
}

/// A proxy answers in place of a server that hangs, which carries the request out later, and of one that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn answer_that_a_proxy_has_lost_is_of_unknown_effect() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let servers = [server];
    let Some(proxy) = Twemproxy::start_or_skip(&servers, "  timeout: 500\n").await else { return };
    let [server] = &servers;
    let url = format!("redis://{}?wait=poll&timeout=30s", proxy.port.addr());
    let backend = open(&url).await;
    let [job, direct, later] =
        ["job", "direct", "later"].map(|name| claim_of(name, Share::MUTEX, Duration::from_secs(120)));
    // The scripts are known from here on.
    assert!(got_once_answered(&*backend, &job).await);
    release_until_answered(&*backend, &job).await;
    let registers = backend.registers().unwrap();
    let at = Resource::new("value").unwrap();
    let nothing = in_the_end(|| registers.read(&at)).await;
    let written = Put { value: Some(b"value".to_vec()), keep: None };
    let is_lost = |failure: &Failure| {
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::Unknown), "{failure}");
    };

    server.stop().unwrap();
    let asked = backend.direct_requests().unwrap().ask_directly(&direct, Moment::from_nanos(1)).unwrap();
    let unanswered = asked.await;
    assert!(matches!(unanswered, DirectReply::Unknown), "{unanswered:?}");
    is_lost(&backend.contend(&job, &no_patience()).await.unwrap_err());
    is_lost(&registers.swap(&at, &nothing.stamp, &written).await.unwrap_err());
    server.resume().unwrap();
    // A claim of unknown outcome is released, and nothing of it stays.
    for claim in [&job, &direct] {
        release_until_answered(&*backend, claim).await;
        let next = claim_of(claim.resource.as_str(), Share::MUTEX, Duration::from_secs(120));
        assert!(
            got_once_answered(&*backend, &next).await,
            "{} is held by a claim that nobody has",
            claim.resource
        );
    }

    server.kill().unwrap();
    is_lost(&backend.contend(&later, &no_patience()).await.unwrap_err());
    let release = release(&*backend, &later).await;
    assert!(matches!(&release, Release::Unknown(failure) if failure.is_transient()), "{release:?}");
    server.restart(Data::Lose).await.unwrap();
    release_until_answered(&*backend, &later).await;
    assert!(got_once_answered(&*backend, &later).await);
}

/// Asks once for a claim, and again where the proxy has lost the answer. Returns `true` if it is granted.
async fn got_once_answered(backend: &dyn Backend, claim: &Claim) -> bool {
    matches!(in_the_end(async || backend.contend(claim, &no_patience()).await).await, Step::Granted(_))
}

async fn keys(server: &RedisServer) -> i64 {
    match server.command(&["DBSIZE"]).await.unwrap() {
        leasehold_testkit::Reply::Int(number) => number,
        other => panic!("{other:?}"),
    }
}
