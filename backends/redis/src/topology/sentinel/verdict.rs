//! The answers of the Sentinels, and the choice among them.
//!
//! Answers come in, a primary or an explanation comes out. Nothing here sends a request, except for the
//! address behind a name.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use leasehold_backend::url::Host;
use leasehold_core::{Effect, Failure, FailureKind};
use redis::Value;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// The primary, with the epoch of its election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) host: Host,
    /// The addresses of the host, if it could be resolved.
    addresses: Vec<IpAddr>,
    pub(super) epoch: u64,
}

impl Named {
    /// Returns whether both are the same server: each Sentinel reports a name or an address, as it is
    /// configured.
    pub(super) fn is_same(&self, other: &Named) -> bool {
        let is_there = self.addresses.iter().any(|address| other.addresses.contains(address));
        self.host.port == other.host.port && (self.host.name == other.host.name || is_there)
    }
}

/// The answer of one Sentinel about the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    named: Named,
    /// It leads a failover. Then it shows the new epoch before it shows the new address, so the two do
    /// not belong together.
    is_failing_over: bool,
}

impl Answer {
    /// Reads the answer to `SENTINEL MASTER`.
    pub(super) fn read(answer: Value) -> Result<Answer, Failure> {
        let fields: HashMap<String, String> = redis::from_redis_value(answer).unwrap_or_default();
        let field = |name: &str| fields.get(name).map(String::as_str);
        let read = || {
            let host = Host { name: field("ip")?.to_owned(), port: field("port")?.parse().ok()? };
            let named = Named { host, addresses: Vec::new(), epoch: field("config-epoch")?.parse().ok()? };
            Some(Answer { named, is_failing_over: field("flags")?.contains("failover_in_progress") })
        };
        read().ok_or_else(|| {
            let text = "its answer is not understood: check that it is a Sentinel of Redis 6.2 or later, or of Valkey";
            Failure::new(FailureKind::Unsupported, Effect::None, text)
        })
    }
}

impl Answer {
    /// Adds the addresses of the primary, where its name has any.
    pub(super) async fn resolved(mut self) -> Answer {
        let Host { name, port } = &self.named.host;
        if let Ok(Ok(found)) = timeout(RESOLVE, lookup_host((name.as_str(), *port))).await {
            self.named.addresses = found.map(|address| address.ip()).collect();
        }
        self
    }

    /// Returns the primary, where its address and its epoch belong together.
    pub(super) fn settled(&self) -> Option<&Named> {
        (!self.is_failing_over).then_some(&self.named)
    }
}

/// Longest time to resolve a name. Without addresses it is compared as text.
const RESOLVE: Duration = Duration::from_millis(500);

/// All answers to one question.
#[derive(Debug)]
pub(super) struct Verdict<'a> {
    name: &'a str,
    asked: usize,
    answers: Vec<(Host, Result<Answer, Failure>)>,
}

impl<'a> Verdict<'a> {
    /// Begins a verdict: none of so many has answered yet.
    pub(super) fn new(name: &'a str, asked: usize) -> Verdict<'a> {
        Verdict { name, asked, answers: Vec::new() }
    }

    /// Adds a Sentinel that has answered, or failed to.
    pub(super) fn add(&mut self, host: Host, answer: Result<Answer, Failure>) {
        self.answers.push((host, answer));
    }

    /// Returns `true` if a majority of those in the URL names a primary. A client that is cut off
    /// together with a minority must not take their old view for the present one.
    pub(super) fn has_majority(&self) -> bool {
        self.named().count() > self.asked / 2
    }

    /// Returns the primary of the newest epoch that any Sentinel has seen.
    pub(super) fn decide(self) -> Result<Named, Failure> {
        if !self.has_majority() {
            return Err(self.failure(format!("fewer than {} name it", self.asked / 2 + 1)));
        }
        let newest = self.named().map(|answer| answer.named.epoch).max().unwrap_or_default();
        let mut settled =
            self.named().filter(|answer| answer.named.epoch == newest && !answer.is_failing_over);
        let Some(first) = settled.next() else {
            return Err(self.failure("a failover is under way".to_owned()));
        };
        if settled.any(|answer| !answer.named.is_same(&first.named)) {
            return Err(self.failure(format!("two are named in epoch {newest}")));
        }
        Ok(first.named.clone())
    }

    fn named(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().filter_map(|(_, answer)| answer.as_ref().ok())
    }

    /// Describes what is wrong, and the answer of each Sentinel.
    fn failure(&self, wrong: String) -> Failure {
        let reports: Vec<String> = self
            .answers
            .iter()
            .map(|(host, answer)| match answer {
                Ok(Answer { named, is_failing_over }) => {
                    let note = if *is_failing_over { ", and is failing over" } else { "" };
                    format!("{host} names {} in epoch {}{note}", named.host, named.epoch)
                }
                // Failures of a connection name the server already.
                Err(failure) if failure.detail().contains(&host.to_string()) => failure.detail().to_owned(),
                Err(failure) => format!("{host}: {}", failure.detail()),
            })
            .chain((self.answers.len() < self.asked).then(|| "others did not answer in time".to_owned()))
            .collect();
        let text = format!("no primary of {} is known, since {wrong}: {}", self.name, reports.join("; "));
        // A refusal that all of them share will not pass; else a missing Sentinel may come back.
        let failures: Vec<_> = self.answers.iter().filter_map(|(_, answer)| answer.as_ref().err()).collect();
        let kind = match failures.first() {
            Some(first)
                if failures.len() == self.asked && failures.iter().all(|one| one.kind == first.kind) =>
            {
                first.kind
            }
            _ => FailureKind::Unavailable,
        };
        Failure::new(kind, Effect::None, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Host {
        Host { name: name.to_owned(), port: 1 }
    }

    fn named(name: &str, epoch: u64) -> Result<Answer, Failure> {
        Ok(Answer { named: Named { host: host(name), addresses: Vec::new(), epoch }, is_failing_over: false })
    }

    fn leading(name: &str, epoch: u64) -> Result<Answer, Failure> {
        Ok(Answer { named: Named { host: host(name), addresses: Vec::new(), epoch }, is_failing_over: true })
    }

    fn silent() -> Result<Answer, Failure> {
        Err(Failure::unavailable("cannot connect"))
    }

    fn verdict(answers: Vec<Result<Answer, Failure>>) -> Result<(String, u64), Failure> {
        let mut verdict = Verdict::new("jobs", answers.len());
        for (number, answer) in answers.into_iter().enumerate() {
            verdict.add(host(&format!("s{number}")), answer);
        }
        verdict.decide().map(|named| (named.host.name, named.epoch))
    }

    fn wrong(answers: Vec<Result<Answer, Failure>>) -> String {
        let failure = verdict(answers).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unavailable);
        failure.detail().to_owned()
    }

    #[test]
    fn the_newest_epoch_is_believed_once_a_majority_has_answered() {
        assert_eq!(verdict(vec![named("a", 0)]).unwrap(), ("a".into(), 0));
        assert_eq!(verdict(vec![named("a", 1), named("b", 2), named("a", 1)]).unwrap(), ("b".into(), 2));
        assert_eq!(verdict(vec![named("a", 1), silent(), named("a", 1)]).unwrap(), ("a".into(), 1));
    }

    #[test]
    fn a_minority_is_not_believed() {
        let text = wrong(vec![named("a", 1), silent(), silent()]);
        assert!(text.contains("fewer than 2") && text.contains("s0:1 names a:1 in epoch 1"), "{text}");
        assert!(text.contains("s2:1: cannot connect"), "{text}");
        assert!(wrong(vec![named("a", 1), silent()]).contains("fewer than 2"));
        let mut cut_short = Verdict::new("jobs", 3);
        cut_short.add(host("s"), named("a", 1));
        assert!(cut_short.decide().unwrap_err().detail().contains("others did not answer in time"));
    }

    #[test]
    fn failover_leader_reports_the_new_epoch_with_the_old_address() {
        // It is not used; but it shows that the others are behind.
        assert!(wrong(vec![leading("old", 2), named("old", 1), named("old", 1)]).contains("under way"));
        assert_eq!(
            verdict(vec![leading("old", 2), named("new", 2), named("old", 1)]).unwrap(),
            ("new".into(), 2)
        );
        // Before the promotion no new epoch can be seen.
        assert_eq!(
            verdict(vec![leading("old", 1), named("old", 1), named("old", 1)]).unwrap(),
            ("old".into(), 1)
        );
    }

    #[test]
    fn two_primaries_of_one_epoch_are_one_too_many() {
        assert!(
            wrong(vec![named("a", 1), named("b", 1), named("a", 1)]).contains("two are named in epoch 1")
        );
    }

    #[tokio::test]
    async fn a_name_and_its_address_are_one_primary() {
        let resolved = async |name: &str| named(name, 1).unwrap().resolved().await;
        let (name, address) = (resolved("localhost").await, resolved("127.0.0.1").await);
        assert!(name.named.is_same(&address.named), "{name:?} and {address:?}");
        assert_eq!(verdict(vec![Ok(address.clone()), Ok(name), silent()]).unwrap(), ("127.0.0.1".into(), 1));
        let (other, unknown) = (resolved("127.0.0.2").await, named("unknown", 1).unwrap());
        assert!(!other.named.is_same(&address.named) && !unknown.named.is_same(&address.named));
        assert!(unknown.named.is_same(&unknown.clone().named));
    }

    #[test]
    fn what_all_refuse_alike_does_not_pass() {
        let denied = || Err(Failure::new(FailureKind::Denied, Effect::None, "no password"));
        assert_eq!(verdict(vec![denied(), denied()]).unwrap_err().kind, FailureKind::Denied);
        assert_eq!(verdict(vec![denied(), silent()]).unwrap_err().kind, FailureKind::Unavailable);
    }

    #[test]
    fn answers_are_read_in_whatever_form_and_order() {
        let text = |text: &str| Value::BulkString(text.into());
        let fields =
            ["name", "jobs", "ip", "::1", "port", "7", "flags", "master,o_down", "config-epoch", "9"];
        let answer = Answer::read(Value::Array(fields.map(text).into())).unwrap();
        assert_eq!(
            answer.named,
            Named { host: Host { name: "::1".into(), port: 7 }, addresses: Vec::new(), epoch: 9 }
        );
        assert!(!answer.is_failing_over);
        assert!(Answer::read(Value::Nil).unwrap_err().detail().contains("not understood"));
    }
}
