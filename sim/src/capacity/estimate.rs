//! The closed form: what a load costs, by formulas.
//!
//! It assumes that answers come soon against the times between requests, and that processes do not act in
//! step. So it holds below some 80 % of what a server can do; `world.rs` shows where it does not.

use crate::capacity::figures::Figures;
use crate::capacity::rules::{
    GLANCE_AHEAD, HEAD_POLL, LAST_POLL, REFRESH, RENEW_AT, SECOND, TICK, beat, beats,
};
use crate::capacity::stores::{StoreModel, Waiting};
use crate::capacity::workload::Workload;

/// Returns what this load costs.
pub fn estimate(store: &StoreModel, load: &Workload) -> Figures {
    let costs = &store.costs;
    let renewing = renewing(store, load);
    let looking = looking(store, load);
    let handing = handing(store, load);
    let requests = renewing.requests + looking + handing.requests + 2.0 * load.cycles;
    let micros = renewing.turns * costs.request
        + (renewing.requests - renewing.turns) * costs.further
        + renewing.claims * costs.renew
        + looking_cost(store, load, looking)
        + handing.rate * costs.hand_over
        + handing.polls * costs.look
        + load.cycles * costs.cycle;
    let writes =
        2.0 * load.cycles + 3.0 * handing.rate + if store.renewals_sync { renewing.requests } else { 0.0 };
    Figures {
        renewals: renewing.claims,
        renew_requests: renewing.requests,
        looks: looking,
        hand_overs: handing.rate,
        requests,
        cores: micros / 1e6,
        syncs: store.sync.map_or(0.0, |sync| syncs(writes, sync, load.shards)),
    }
}

/// Returns the part of its cores that a server uses.
pub fn utilisation(store: &StoreModel, load: &Workload) -> f64 {
    estimate(store, load).cores / (load.shards * store.cores(load.cores)) as f64
}

/// Returns the syncs in a second of all disks: each takes all writes that arrived during the one before.
///
/// With `a` writes in the time of a sync, the next one follows at once with the chance 1 - exp(-a). So exp(a)
/// of them follow each other, and then the disk waits for the next write.
pub fn syncs(writes: f64, sync_micros: f64, shards: u64) -> f64 {
    let rate = writes / shards as f64;
    let (each, row) = (rate * sync_micros / 1e6, (rate * sync_micros / 1e6).min(500.0).exp());
    shards as f64 * rate * row / (1.0 + each * row)
}

/// The renewals in a second, and the requests that they take.
struct Renewing {
    claims: f64,
    requests: f64,
    /// The turns of processes with the requests to one server.
    turns: f64,
}

fn renewing(store: &StoreModel, load: &Workload) -> Renewing {
    let ttl = store.paced(load.ttl);
    let beats = beats(ttl, RENEW_AT);
    let period = (beats * beat(ttl)) as f64 / SECOND as f64;
    // Some processes hold one lock more than the others.
    let (few, more) = (load.held / load.processes, load.held % load.processes);
    let some = requests_of_a_beat(store, few, beats, load.shards);
    let others = requests_of_a_beat(store, few + 1, beats, load.shards);
    let rate = |few: f64, more_each: f64| {
        let all = few * (load.processes - more) as f64 + more_each * more as f64;
        all * (beats * load.shards) as f64 / period
    };
    Renewing {
        claims: load.held as f64 / period,
        requests: rate(some.0, others.0),
        turns: rate(some.1, others.1),
    }
}

/// Returns the mean number of requests of one process in one beat to one server, where so many locks are
/// spread over so many beats and servers; and the chance that there is any.
fn requests_of_a_beat(store: &StoreModel, count: u64, beats: u64, shards: u64) -> (f64, f64) {
    let sessions = store.session_claims.map_or(1, |claims| count.div_ceil(claims).max(1));
    let in_session = count / sessions;
    let (mut requests, mut turns) = (0.0, 0.0);
    for (due, chance) in binomial(in_session, beats * shards) {
        if due > 0 {
            let (full, rest) = (due / store.batch_max, due % store.batch_max);
            let renewing = full as f64 * groups(store, store.batch_max, shards) + groups(store, rest, shards);
            requests += chance * (renewing + store.beside as f64);
            turns += chance;
        }
    }
    (requests * sessions as f64, turns)
}

/// Returns how many requests a batch to one server needs: one, or one for each slot of its names.
fn groups(store: &StoreModel, count: u64, shards: u64) -> f64 {
    match store.slots {
        None => f64::from(u8::from(count > 0)),
        Some(slots) => distinct(count as f64, slots as f64 / shards as f64),
    }
}

/// Returns how many of so many places have one of `count`, which fall into them by chance.
fn distinct(count: f64, places: f64) -> f64 {
    places * (1.0 - (1.0 - 1.0 / places).powf(count))
}

/// Returns the chances that so many of `count` fall into one of `places`, where they are not negligible.
fn binomial(count: u64, places: u64) -> Vec<(u64, f64)> {
    let part = 1.0 / places as f64;
    if places == 1 {
        return vec![(count, 1.0)];
    }
    let mut log = count as f64 * (1.0 - part).ln();
    let odds = (part / (1.0 - part)).ln();
    let mut chances = Vec::new();
    for due in 0..=count {
        if log > -50.0 {
            chances.push((due, log.exp()));
        } else if due as f64 > count as f64 * part {
            break;
        }
        log += ((count - due) as f64 / (due + 1) as f64).ln() + odds;
    }
    chances
}

/// Returns the requests in a second for waiters whose locks stay taken.
fn looking(store: &StoreModel, load: &Workload) -> f64 {
    let second = SECOND as f64;
    let each = load.waiters as f64 / load.processes as f64;
    // The mean rate of pauses that are spread over the last quarter.
    let refreshes = (4.0_f64 / 3.0).ln() / (REFRESH as f64 / 4.0 / second);
    match store.waiting {
        Waiting::Looks(requests) => load.waiters as f64 * refreshes * requests as f64,
        Waiting::Glances => {
            let (processes, each) = (load.processes.min(load.waiters) as f64, each.max(1.0));
            let rate = glances(each, refreshes);
            let places = store.slots.unwrap_or(1).max(load.shards) as f64;
            processes * rate * distinct(each * refreshes / rate, places)
        }
        Waiting::KeptAlive(every) => {
            let processes = load.processes.min(load.waiters) as f64;
            processes * distinct(each.max(1.0), load.shards as f64) * second / every as f64
        }
        Waiting::Polls => {
            let queues = load.waiters as f64 / load.waiters_each as f64;
            queues * (0..load.waiters_each).map(polls).sum::<f64>()
        }
    }
}

/// Returns the looks in a second of a process with so many waiters: each takes all that are due soon with it.
fn glances(waiters: f64, refreshes: f64) -> f64 {
    let ahead = GLANCE_AHEAD as f64 / SECOND as f64;
    // Those that are taken along come a little early, and so a little more often.
    let along = 1.0 - 1.0 / (1.0 + (waiters - 1.0) * refreshes * ahead);
    let rate = waiters / (1.0 / refreshes - along * ahead / 2.0);
    let others = rate * (waiters - 1.0) / waiters;
    rate / (1.0 + others * ahead)
}

/// Returns the polls in a second of a claim with so many waiters before it.
fn polls(before: u64) -> f64 {
    let longest = (HEAD_POLL * (before + 1) + TICK) as f64 / SECOND as f64;
    let (least, most) = (LAST_POLL as f64 * 0.75 / SECOND as f64, LAST_POLL as f64 / SECOND as f64);
    if longest <= least {
        return 1.0 / longest;
    }
    // The mean of a pause that is spread between the two, and cut.
    let cut = longest.min(most);
    let whole = (cut * cut - least * least) / 2.0 + cut * (most - cut);
    1.0 / (whole / (most - least))
}

/// Returns the processor time of looks, in microseconds for each second.
fn looking_cost(store: &StoreModel, load: &Workload, requests: f64) -> f64 {
    match store.waiting {
        // A look of many costs as much as those that it looks for.
        Waiting::Glances => {
            let refreshes = (4.0_f64 / 3.0).ln() / (REFRESH as f64 / 4.0 / SECOND as f64);
            requests * store.costs.request + load.waiters as f64 * refreshes * store.costs.look
        }
        _ => requests * store.costs.look,
    }
}

/// The locks that go from process to process.
struct HandingRates {
    rate: f64,
    polls: f64,
    requests: f64,
}

fn handing(store: &StoreModel, load: &Workload) -> HandingRates {
    let second = SECOND as f64;
    let (network, hand_over) = (load.network as f64 / second, store.costs.hand_over / 1e6);
    let sync = store.sync.unwrap_or(0.0) / 1e6;
    let waits = match store.waiting {
        // Half of the pause of the next in the queue passes before it looks.
        Waiting::Polls => {
            (HEAD_POLL + TICK) as f64 / second / 2.0 + 5.0 * network + 2.0 * hand_over / 3.0 + 2.0 * sync
        }
        _ => 4.0 * network + hand_over * 3.0 / (4 + store.hand_over_extra) as f64 + 2.0 * sync,
    };
    let rate = load.handing.queues as f64 / (load.handing.hold as f64 / second + waits);
    let polls = match store.waiting {
        Waiting::Polls => load.handing.queues as f64 * (0..load.handing.waiters).map(polls).sum::<f64>(),
        _ => 0.0,
    };
    HandingRates { rate, polls, requests: rate * (3 + store.hand_over_extra) as f64 + polls }
}
