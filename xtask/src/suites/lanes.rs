//! The number of test programs that run at a time.
//!
//! Twice as many as there are cores keep the cores busy, where programs compute. Some programs wait nine tenths of
//! their time, for leases that end, failovers and processes that die. More of those run beside the others, so that
//! no core is idle meanwhile, and more of the others do not: servers would not answer in time.

use std::collections::VecDeque;

use super::{Suite, cores};

/// The programs of one run that have not begun.
#[derive(Debug)]
pub(super) struct Lanes {
    computing: VecDeque<Suite>,
    waiting: VecDeque<Suite>,
}

/// The kind of programs that one lane begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Programs of both kinds, those that compute first.
    Any,
    /// Programs that mostly wait.
    Waiting,
}

impl Lanes {
    /// Takes programs in their order.
    pub(super) fn of(suites: Vec<Suite>) -> Lanes {
        let (waiting, computing): (Vec<_>, Vec<_>) = suites.into_iter().partition(Suite::mostly_waits);
        Lanes { computing: computing.into(), waiting: waiting.into() }
    }

    /// Returns all lanes of a run.
    pub(super) fn all() -> impl Iterator<Item = Lane> {
        let any = std::iter::repeat_n(Lane::Any, 2 * cores());
        any.chain(std::iter::repeat_n(Lane::Waiting, cores() + 1))
    }

    /// Returns the next program of a lane; `None` if none is left for it.
    pub(super) fn next(&mut self, lane: Lane) -> Option<Suite> {
        let computing = match lane {
            Lane::Any => self.computing.pop_front(),
            Lane::Waiting => None,
        };
        computing.or_else(|| self.waiting.pop_front())
    }
}

impl Suite {
    /// Returns its place among those that wait nine tenths of their time; the number of those if it is another one.
    pub(super) fn place_of_waiting(&self) -> usize {
        let package = self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_this = |waiting: &(&str, &str)| waiting.0 == package && self.name() == Some(waiting.1);
        WAITING.iter().position(is_this).unwrap_or(WAITING.len())
    }

    fn mostly_waits(&self) -> bool {
        self.place_of_waiting() < WAITING.len()
    }
}

/// The folders and names of programs that mostly wait, as the processor times of a run show. Those that take
/// longest are first, which is the order of a first run.
const WAITING: &[(&str, &str)] = &[
    ("campaign", "mutants"),
    ("tests", "secrets"),
    ("tests", "partitions"),
    ("serve", "api"),
    ("serve", "console"),
    ("memcached", "faults"),
    ("memcached", "conformance"),
    ("etcd", "faults"),
    ("leasehold", "engine_fork"),
    ("redis", "wait"),
    ("conformance", "right_models"),
    ("etcd", "cluster"),
    ("tests", "many_leases"),
    ("conformance", "defective_models"),
    ("redis", "cluster"),
    ("zookeeper", "tls"),
    ("redis", "sentinel"),
    ("mysql", "for_update"),
    ("tests", "messages"),
    ("redis", "replicas"),
    ("leasehold", "conformance_memory"),
    ("redis", "outages"),
    ("tests", "redis_failovers"),
    ("tests", "redlock_faults"),
    ("testkit", "redis_sentinel"),
    ("etcd", "outage"),
    ("campaign", "endurance"),
    ("leasehold", "engine_supervision"),
    ("tests", "redis_isolation"),
    ("backend", "session"),
    ("torture", "rig"),
    ("testkit", "redis_cluster"),
    ("redis", "faults"),
    ("tests", "paused_holder"),
    ("redis", "dialects"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(folder: &str, test: &str) -> Suite {
        Suite {
            repeat: format!("cargo test --manifest-path {folder}/Cargo.toml --test {test}"),
            program: "sh".into(),
            arguments: Vec::new(),
            folder: folder.into(),
            variables: Vec::new(),
        }
    }

    #[test]
    fn a_program_that_mostly_waits_begins_beside_the_others() {
        let repeat = |suite: Option<Suite>| suite.map(|suite| suite.repeat);
        let [cells, mutants, faults] =
            [("/w/campaign", "cells"), ("/w/campaign", "mutants"), ("/w/backends/redis", "it faults::")];
        let suites = || [cells, mutants, faults].map(|(folder, test)| suite(folder, test)).to_vec();
        let mut lanes = Lanes::of(suites());
        assert_eq!(repeat(lanes.next(Lane::Waiting)), Some(suites()[1].repeat.clone()));
        assert_eq!(repeat(lanes.next(Lane::Waiting)), Some(suites()[2].repeat.clone()));
        assert_eq!(repeat(lanes.next(Lane::Waiting)), None);
        assert_eq!(repeat(lanes.next(Lane::Any)), Some(suites()[0].repeat.clone()));
        assert_eq!(repeat(lanes.next(Lane::Any)), None);
    }

    #[test]
    fn a_lane_for_waiting_programs_begins_no_other() {
        let mut lanes = Lanes::of(vec![suite("/w/campaign", "cells")]);
        assert_eq!(lanes.next(Lane::Waiting), None);
        assert_eq!(Lanes::all().filter(|lane| *lane == Lane::Any).count(), 2 * cores());
    }
}
