//! The steps of laws about registers.

use std::time::Duration;

use leasehold_core::{Put, Registered, Registers, Resource, Stamp};

use super::{MAX_TRIES, PAUSE, TestClient};
use crate::client::{HANG, within};
use crate::not_kept::{Checked, NotKept, ensure};

/// Returns the registers of this connection; a law about them is opted out of where there are none.
pub(super) fn store(client: &TestClient) -> Checked<&dyn Registers> {
    let none =
        || NotKept::OptedOut(format!("the {} backend has no registers", client.backend.profile().name));
    client.backend.registers().ok_or_else(none)
}

pub(super) fn put(value: Option<&[u8]>, keep: Option<Duration>) -> Put {
    Put { value: value.map(<[u8]>::to_vec), keep }
}

pub(super) async fn read(client: &TestClient, at: &Resource) -> Checked<Registered> {
    Ok(within(HANG, "read", store(client)?.read(at)).await??)
}

/// Writes once, on what was seen.
pub(super) async fn swap(
    client: &TestClient,
    at: &Resource,
    seen: &Stamp,
    value: Option<&[u8]>,
) -> Checked<Option<Stamp>> {
    let put = put(value, None);
    Ok(within(HANG, "swap", store(client)?.swap(at, seen, &put)).await??)
}

/// Returns the stamp of a register that was never written.
pub(super) async fn unwritten_stamp(client: &TestClient, at: &Resource) -> Checked<Stamp> {
    let found = read(client, at).await?;
    ensure!(found.value.is_none(), "{at:?} was never written, and holds {:?}", found.value);
    Ok(found.stamp)
}

/// Returns the value, which must exist.
pub(super) async fn present(client: &TestClient, at: &Resource) -> Checked<(Vec<u8>, Stamp)> {
    let found = read(client, at).await?;
    let nothing = || NotKept::broken(format!("{at:?} was written, and there is nothing"));
    Ok((found.value.ok_or_else(nothing)?, found.stamp))
}

/// Writes over any present value.
pub(super) async fn write(client: &TestClient, at: &Resource, value: &[u8]) -> Checked<Stamp> {
    exchange(client, at, |_| Some(value.to_vec())).await
}

pub(super) async fn remove(client: &TestClient, at: &Resource) -> Checked<Stamp> {
    exchange(client, at, |_| None).await
}

/// Writes what `new` makes of the present value, and repeats it as long as others are first.
pub(super) async fn exchange(
    client: &TestClient,
    at: &Resource,
    mut new: impl FnMut(Option<Vec<u8>>) -> Option<Vec<u8>>,
) -> Checked<Stamp> {
    for tries in 0..MAX_TRIES {
        let seen = read(client, at).await?;
        let value = new(seen.value);
        if let Some(stamp) = swap(client, at, &seen.stamp, value.as_deref()).await? {
            return Ok(stamp);
        }
        // Of the writers that lose together, each returns at another time.
        tokio::time::sleep(PAUSE * (crate::random::Random::new()?.below(u64::from(tries.min(8) + 1)) as u32))
            .await;
    }
    Err(NotKept::broken(format!(
        "{MAX_TRIES} writes in a row were refused: others write less often than that"
    )))
}
