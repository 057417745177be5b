//! The scripts of one server of a quorum, step by step beside the node of the model.

use std::time::Duration;

use leasehold::backend::quorum::{Member, MemberState, RequestStamp, Vote};
use leasehold::backend::{Claim, ClaimId, Fence};
use leasehold::{Resource, Share};
use leasehold_redis::{RedisConfig, RedisNode};
use leasehold_sim::quorum::{Answer, Node, Rules, Seen};
use leasehold_testkit::{Data, RedisServer, until};

const STEPS: usize = 1500;
const CLAIMS: usize = 4;

/// One question that was answered, by the model and by the server.
struct Asked {
    claim_index: usize,
    value: u8,
    stamp: RequestStamp,
    model: Answer,
    run: String,
}

/// The server beside the model.
struct ServerAndModel {
    server: RedisServer,
    member: RedisNode,
    node: Node,
    claims: Vec<Claim>,
    asked: Vec<Asked>,
    seen: Vec<(Seen, MemberState)>,
    asks: u32,
    /// Questions with which a fence was taken.
    returned: u32,
}

fn bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).unwrap();
    bytes
}

fn below(n: usize) -> usize {
    getrandom::u32().unwrap() as usize % n
}

impl ServerAndModel {
    async fn start() -> Option<ServerAndModel> {
        let server = RedisServer::start_or_skip().await?;
        let member = RedisNode::new(RedisConfig::parse(&server.url()).unwrap());
        let claim = || {
            Claim::new(
                ClaimId::from_bytes(bytes()),
                Resource::new("twin").unwrap(),
                Share::MUTEX,
                Duration::from_secs(600),
            )
        };
        let claims = (0..CLAIMS).map(|_| claim()).collect();
        let node = Node::fresh(0);
        let (asked, seen) = (Vec::new(), Vec::new());
        Some(ServerAndModel { server, member, node, claims, asked, seen, asks: 0, returned: 0 })
    }

    /// A client requests the lock; an earlier holder's lease has run out before.
    async fn prepare(&mut self) {
        let claim_index = below(CLAIMS);
        self.server.command(&["DEL", "{lh:twin}:vote"]).await.unwrap();
        let stamp = RequestStamp::from_bytes(bytes());
        let last = self.last_of_client();
        let claim = &self.claims[claim_index];
        let answer = self.member.prepare(claim, stamp, last.map(fence_of)).await.unwrap();
        // The model knows values apart by a small number; long before it is used again, its question is
        // forgotten.
        self.asks += 1;
        let value = (self.asks % 200) as u8;
        let (model, took) = match last {
            None => (self.node.ask(value), false),
            Some(last) => self.node.return_to(value, last, &Rules::SOUND),
        };
        self.returned += u32::from(took);
        assert_eq!(answer.state.armed().unwrap_or(0), u64::from(model.epoch));
        let Vote::Yours { last, fence } = answer.vote else { panic!("{answer:?}") };
        assert_eq!(last, fence_of(model.record));
        // The lock ran out, and its fence with it.
        assert_eq!(fence, took.then(|| fence_of(model.record)), "{last:?} at {:?}", self.node);
        self.asked.push(Asked { claim_index, value, stamp, model, run: answer.state.run });
        if self.asked.len() > 12 {
            self.asked.remove(0);
        }
    }

    /// Returns the fence that a client remembers: one of about now, of this epoch or of another; or none.
    fn last_of_client(&self) -> Option<(u8, u8)> {
        let (epoch, counter) = self.node.record;
        match below(4) {
            0 => None,
            1 => Some((self.node.epoch.max(1), counter.max(1))),
            2 => Some((epoch.max(1), (counter + below(3) as u8).saturating_sub(1).max(1))),
            _ => Some((self.node.epoch.saturating_sub(1).max(1), counter.max(1))),
        }
    }

    /// A client writes after a request of now or of long ago, with a token that it may have decided on.
    async fn write(&mut self) -> bool {
        let last = self.asked.len().saturating_sub(1);
        // Half of them in time, the others late.
        let which = if below(2) == 0 { last } else { below(last + 1) };
        let Some(asked) = self.asked.get(which) else { return false };
        let epoch = asked.model.epoch.max(1) + below(2) as u8;
        let token = (epoch, (asked.model.record.1 + below(3) as u8).max(1));
        let took = self.node.write(asked.value, asked.model.run, token, &Rules::SOUND);
        let fence = fence_of(token);
        let claim = &self.claims[asked.claim_index];
        let answer = self.member.accept(claim, asked.stamp, &asked.run, fence).await.unwrap();
        assert_eq!(answer, took, "{token:?} after {:?} into {:?}", asked.model, self.node);
        took
    }

    async fn state(&mut self) {
        let state = self.member.state().await.unwrap();
        assert_eq!(state.armed().unwrap_or(0), u64::from(self.node.epoch));
        let Node { run, epoch, losses, .. } = self.node;
        self.seen.push((Seen { run, epoch, losses: state.unarmed_since.map(|_| losses) }, state));
        if self.seen.len() > 6 {
            self.seen.remove(0);
        }
    }

    /// A client marks the node according to an answer of it, of now or of long ago.
    async fn mark(&mut self) -> bool {
        let Some((seen, state)) = self.seen.get(below(self.seen.len().max(1))) else { return false };
        let epoch = seen.epoch + 1 + below(2) as u8;
        let took = self.node.mark(*seen, epoch, &Rules::SOUND);
        let answer = self.member.set_epoch(state, u64::from(epoch)).await.unwrap();
        assert_eq!(answer, took, "{epoch} over {seen:?} into {:?}", self.node);
        took
    }

    async fn flush(&mut self) {
        self.server.flushall().await.unwrap();
        self.node.flush();
    }

    async fn crash(&mut self) {
        self.server.restart(Data::Lose).await.unwrap();
        self.node.crash(leasehold_sim::quorum::NO_OWNER);
        // The first requests may meet the end of the old connection.
        until("the server answers", async || self.member.state().await.is_ok()).await;
    }
}

fn fence_of((epoch, counter): (u8, u8)) -> Fence {
    Fence::new(epoch.into(), counter.into(), 0)
}

#[tokio::test]
async fn the_scripts_do_what_the_model_does() {
    let Some(mut pair) = ServerAndModel::start().await else { return };
    let (mut taken, mut marked, mut refused) = (0, 0, 0);
    for step in 0..STEPS {
        if step % 150 == 149 || pair.node.epoch > 200 || pair.node.record.1 > 200 {
            pair.crash().await;
            continue;
        }
        if step % 50 == 49 {
            pair.flush().await;
            continue;
        }
        let took = match below(10) {
            0..4 => {
                pair.prepare().await;
                continue;
            }
            4..8 => pair.write().await.then(|| taken += 1),
            8 => {
                pair.state().await;
                continue;
            }
            _ => pair.mark().await.then(|| marked += 1),
        };
        refused += u32::from(took.is_none());
    }
    let returned = pair.returned;
    println!("{taken} tokens taken, {returned} with the question, {marked} marks, {refused} refusals");
    assert!(
        taken > 20 && returned > 20 && marked > 5 && refused > 100,
        "{taken} {returned} {marked} {refused}: too few to show anything"
    );
}

#[tokio::test]
async fn question_that_was_overtaken_changes_no_lock() {
    let Some(twin) = ServerAndModel::start().await else { return };
    let (member, claim) = (&twin.member, &twin.claims[0]);
    // Some locales sort digits behind letters.
    let (first, second, other) =
        (RequestStamp::numbered(7, 9), RequestStamp::numbered(7, 10), RequestStamp::numbered(6, 99));
    for (asked, has) in
        [(vec![second, first], second), (vec![first, second], second), (vec![second, other], other)]
    {
        for stamp in &asked {
            let answer = member.prepare(claim, *stamp, None).await.unwrap();
            assert!(matches!(answer.vote, Vote::Yours { .. }), "{answer:?}");
        }
        let others: Vec<RequestStamp> = asked.into_iter().filter(|stamp| *stamp != has).collect();
        assert!(!member.withdraw(claim, &[]).await.unwrap(), "no lock is meant");
        assert!(!member.withdraw(claim, &others).await.unwrap(), "it has a later stamp");
        assert!(member.withdraw(claim, &[others[0], has]).await.unwrap());
        assert!(!member.withdraw(claim, &[has]).await.unwrap(), "it is gone");
    }
}
