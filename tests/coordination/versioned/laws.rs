//! No update is lost and none is made twice, even if requests and answers are lost.
#![allow(clippy::unwrap_used, reason = "it is part of tests, which the lint does not see here")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use leasehold::{ErrorKind, Versioned};

use crate::world::on_schedules;

/// The results of the updates, and the number of updates without a result.
#[derive(Debug, Default)]
struct History {
    /// The number that each confirmed update wrote.
    written: Vec<u64>,
    /// The number of updates of which it is not known whether they were made.
    unknown: u64,
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| str::from_utf8(value).unwrap().parse().unwrap())
}

async fn add_one(value: &Versioned) -> leasehold::Result<leasehold::UpdateOutcome> {
    value.update(|old| Some((number(old) + 1).to_string().into_bytes())).await
}

/// All clients add one, over wires that lose and delay; some updates are cancelled halfway, and some
/// clients fall silent. By the reported results, no two updates wrote the same number, and the last
/// number is that of the updates that were made.
#[test]
fn none_is_lost_and_none_is_made_twice() {
    on_schedules(|mut world| async move {
        let history = Arc::new(Mutex::new(History::default()));
        let escalate_after = world.chance.below(4) as u32;
        let tasks: Vec<_> = (0..2 + world.chance.below(4))
            .map(|_| {
                let (client, mut chance, history) = (world.client(), world.chance.fork(), history.clone());
                let dies = chance.below(4) == 0;
                tokio::spawn(async move {
                    let value = client.locks.versioned("stock").escalate_after(escalate_after);
                    for round in 0..5 {
                        tokio::time::sleep(chance.ms(60)).await;
                        let patience = if chance.below(4) == 0 { chance.ms(40) } else { LONG };
                        let updated = tokio::time::timeout(patience, add_one(&value)).await;
                        let mut history = history.lock().unwrap();
                        match updated {
                            Ok(Ok(update)) => history.written.push(number(update.value.as_deref())),
                            Err(_) => history.unknown += 1,
                            Ok(Err(error)) if error.kind() == ErrorKind::OutcomeUnknown => {
                                history.unknown += 1
                            }
                            // Not made, and the error says so.
                            Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                        }
                        if dies && round == 2 {
                            return client.falls_silent();
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let last = number(world.calm_client().locks.versioned("stock").read().await.unwrap().value());
        let history = history.lock().unwrap();
        let written: BTreeSet<u64> = history.written.iter().copied().collect();
        let made = history.written.len() as u64;
        assert_eq!(written.len() as u64, made, "two wrote the same number, so one is lost: {history:?}");
        assert!((made..=made + history.unknown).contains(&last), "{last}: {history:?}");
        assert!(written.last().is_none_or(|most| *most <= last), "{last}: {history:?}");
    });
}

const LONG: std::time::Duration = std::time::Duration::from_secs(500);
