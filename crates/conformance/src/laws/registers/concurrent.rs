//! Many clients at once: what all of them read and wrote must be one history.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use leasehold_core::Resource;

use super::steps::{exchange, present, read, remove, store, swap, write};
use crate::client::TestClient;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) async fn no_addition_is_lost(trial: &Trial) -> Checked {
    store(trial.client(0))?;
    let at = trial.resource("sum")?;
    let (written, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut readers = Vec::new();
    for n in 0..READERS {
        let (client, at) = (trial.client(n).clone(), at.clone());
        let (written, over) = (written.clone(), over.clone());
        readers.push(tokio::spawn(async move {
            let mut last = 0;
            while !over.load(Ordering::Acquire) {
                // What was answered before this read began must be in it.
                let floor = written.load(Ordering::Acquire).max(last);
                last = number(read(&client, &at).await?.value.as_deref())?;
                ensure!(last >= floor, "{floor} was there before, and {last} is read");
                // A store in memory answers without a pause, and the writers need their turn.
                tokio::task::yield_now().await;
            }
            Ok(())
        }));
    }
    let mut writers = Vec::new();
    for n in 0..WRITERS {
        let (client, at, written) = (trial.client(n).clone(), at.clone(), written.clone());
        writers.push(tokio::spawn(async move {
            let mut sums = Vec::new();
            for _ in 0..ADDITIONS {
                let mut sum = Ok(0);
                exchange(&client, &at, |old| {
                    sum = number(old.as_deref()).map(|old| old + 1);
                    Some(sum.as_ref().map_or(0, |sum| *sum).to_string().into_bytes())
                })
                .await?;
                let sum = sum?;
                written.fetch_max(sum, Ordering::Release);
                sums.push(sum);
            }
            Ok::<_, NotKept>(sums)
        }));
    }
    let mut done = Vec::new();
    for writer in writers {
        done.push(writer.await);
    }
    // Also where a writer failed, or the readers would never end.
    over.store(true, Ordering::Release);
    let mut all = HashSet::new();
    for sums in done {
        for sum in sums?? {
            ensure!(all.insert(sum), "two writers wrote {sum}, each on the same one before");
        }
    }
    for reader in readers {
        reader.await??;
    }
    let (found, expected) = (number(Some(&present(trial.client(1), &at).await?.0))?, WRITERS * ADDITIONS);
    ensure!(found == expected as u64, "{expected} additions came to {found}");
    Ok(())
}

pub(crate) async fn successful_writes_form_one_chain(trial: &Trial) -> Checked {
    store(trial.client(0))?;
    let at = trial.resource("chain")?;
    let mut writers = Vec::new();
    for n in 0..WRITERS {
        let (client, at) = (trial.client(n).clone(), at.clone());
        writers.push(tokio::spawn(async move {
            let mut links = Vec::new();
            for round in 0..LINKS {
                let (own, mut before) = (format!("{n}.{round}"), String::new());
                exchange(&client, &at, |old| {
                    before = old.map(|old| first_word(&old)).unwrap_or_default();
                    Some(format!("{own} after {before}").into_bytes())
                })
                .await?;
                links.push((own, before));
            }
            Ok::<_, NotKept>(links)
        }));
    }
    let mut before = HashMap::new();
    for writer in writers {
        before.extend(writer.await??);
    }
    let mut link = first_word(&present(trial.client(1), &at).await?.0);
    let all = before.len();
    for _ in 0..all {
        let next = before.remove(&link);
        let Some(next) = next else {
            return Err(NotKept::broken(format!(
                "the chain leads to {link:?} twice, or it was never written"
            )));
        };
        link = next;
    }
    ensure!(link.is_empty(), "the chain continues behind its {all} links, with {link:?}");
    Ok(())
}

pub(crate) async fn of_many_writes_on_one_state_one_succeeds(trial: &Trial) -> Checked {
    let at = trial.resource("one")?;
    for round in 0..ROUNDS {
        if round % 2 == 0 {
            remove(trial.client(round), &at).await?;
        } else {
            write(trial.client(round), &at, b"seen by all").await?;
        }
        let seen = read(trial.client(0), &at).await?.stamp;
        let mut tasks = Vec::new();
        for n in 0..RIVALS {
            let (client, at, seen) = (trial.client(n).clone(), at.clone(), seen.clone());
            tasks.push(tokio::spawn(async move {
                let value = n.to_string().into_bytes();
                Ok::<_, NotKept>(swap(&client, &at, &seen, Some(&value)).await?.map(|stamp| (value, stamp)))
            }));
        }
        let mut winners = Vec::new();
        for task in tasks {
            winners.extend(task.await??);
        }
        ensure!(winners.len() == 1, "of {RIVALS} writes on one state {} succeeded", winners.len());
        let found = present(trial.client(round), &at).await?;
        ensure!(winners.contains(&found), "{winners:?} won, and {found:?} is there");
    }
    Ok(())
}

pub(crate) async fn values_are_never_read_by_half(trial: &Trial) -> Checked {
    let at = trial.resource("whole")?;
    let max = store(trial.client(0))?.promise().max_bytes;
    let over = Arc::new(AtomicBool::new(false));
    let reader = {
        let (client, at, over) = (trial.client(0).clone(), at.clone(), over.clone());
        tokio::spawn(async move {
            while !over.load(Ordering::Acquire) {
                if let Some(value) = read(&client, &at).await?.value {
                    whole(&value, max)?;
                }
                tokio::task::yield_now().await;
            }
            Ok::<_, NotKept>(())
        })
    };
    let mut writers = Vec::new();
    for n in 1..=LARGE_WRITERS {
        let (client, at) = (trial.client(n).clone(), at.clone());
        writers.push(tokio::spawn(write_large(client, at, n, max)));
    }
    let mut done = Vec::new();
    for writer in writers {
        done.push(writer.await);
    }
    over.store(true, Ordering::Release);
    for written in done {
        written??;
    }
    reader.await??;
    Ok(())
}

async fn write_large(client: TestClient, at: Resource, writer: usize, max: usize) -> Checked {
    for round in 0..LARGE_ROUNDS {
        let kind = u8::try_from(writer * LARGE_ROUNDS + round).unwrap_or(u8::MAX);
        write(&client, &at, &vec![kind; length_of(kind, max)]).await?;
    }
    Ok(())
}

/// Returns the length of a kind of large value: each kind has its own.
fn length_of(kind: u8, max: usize) -> usize {
    max - usize::from(kind) * 16
}

fn whole(value: &[u8], max: usize) -> Checked {
    let Some(kind) = value.first() else {
        return Err(NotKept::broken("an empty value is read, of long ones"));
    };
    let alike = value.iter().filter(|byte| *byte == kind).count();
    ensure!(
        alike == value.len() && value.len() == length_of(*kind, max),
        "a value of {} bytes is read, {alike} of which belong to one of {} bytes",
        value.len(),
        length_of(*kind, max)
    );
    Ok(())
}

fn number(value: Option<&[u8]>) -> Checked<u64> {
    let Some(value) = value else { return Ok(0) };
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| NotKept::broken(format!("a number was written, and {value:?} is read")))
}

fn first_word(value: &[u8]) -> String {
    String::from_utf8_lossy(value).split(' ').next().unwrap_or_default().to_owned()
}

const READERS: usize = 2;
const WRITERS: usize = 6;
const ADDITIONS: usize = 8;
const LINKS: usize = 5;
const ROUNDS: usize = 6;
const RIVALS: usize = 12;
const LARGE_WRITERS: usize = 2;
const LARGE_ROUNDS: usize = 4;
