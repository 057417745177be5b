//! The source of random numbers: the operating system.
//!
//! Ground rules: everything that this crate draws, it draws here, so that a simulation of the engine,
//! which is compiled with `cfg(leasehold_sim)`, draws everything from the seed of its run.

use std::hash::{BuildHasherDefault, Hasher};

use leasehold_core::ClaimId;

#[cfg(not(leasehold_sim))]
mod source {
    /// The hashing of maps: by a key of this process, which nobody learns. That of the standard library takes four
    /// times as long, and each lock needs it several times.
    ///
    /// Names that are chosen for their hashes could only make a map slow, and they would have to be found by measuring
    /// how slow it is.
    pub(crate) type Hashing = foldhash::quality::RandomState;

    pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        getrandom::fill(bytes)
    }
}

#[cfg(leasehold_sim)]
mod source {
    use std::cell::Cell;

    /// The hashing of maps: the same in each run, so that they are iterated in the same order.
    pub(crate) type Hashing = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

    thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0) };
    }

    /// Restarts the random numbers of this thread.
    pub(crate) fn seed(seed: u64) {
        STATE.set(seed);
    }

    pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        for part in bytes.chunks_mut(8) {
            let drawn = next().to_le_bytes();
            part.copy_from_slice(&drawn[..part.len()]);
        }
        Ok(())
    }

    /// Returns the next number by SplitMix64: each state gives another number.
    fn next() -> u64 {
        let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

pub(crate) use source::*;

/// A map that a simulation iterates in the same order each time.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, Hashing>;

/// A map by ids, which are random themselves.
pub(crate) type IdMap<V> = std::collections::HashMap<ClaimId, V, BuildHasherDefault<AsItIs>>;

/// The hash of what is a hash already, or as random as one.
#[derive(Debug, Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..part.len()].copy_from_slice(part);
            self.0 ^= u64::from_le_bytes(whole);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 ^= hash;
    }

    fn write_usize(&mut self, _length: usize) {}
}

/// Ids that are drawn in blocks, because a system call for each takes longer than to grant a lock in memory.
///
/// Ground rules: a fork has a copy of the block, and a copy of a virtual machine has one too. The owner of a stock
/// refuses to work in a fork, and the ids are for stores of which such a machine has a copy as well.
#[derive(Debug, Default)]
pub(crate) struct Stock(std::sync::Mutex<Vec<[u8; 16]>>);

impl Stock {
    pub(crate) fn draw(&self) -> Result<[u8; 16], getrandom::Error> {
        let mut ids = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(id) = ids.pop() {
            return Ok(id);
        }
        let mut block = [0; STOCK * 16];
        fill(&mut block)?;
        let (block, _) = block.as_chunks();
        ids.extend_from_slice(block);
        // The block has one id at least.
        ids.pop().ok_or(getrandom::Error::UNEXPECTED)
    }
}

/// The kernel draws so many, which are 256 bytes, without interruption.
const STOCK: usize = 16;

/// Draws 32 random bits.
pub(crate) fn u32() -> Result<u32, getrandom::Error> {
    let mut bytes = [0; 4];
    fill(&mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Draws the chance of a pause; see [`leasehold_core::jittered`].
pub(crate) fn chance() -> u32 {
    u32().unwrap_or(u32::MAX)
}

/// Draws 64 random bits.
pub(crate) fn u64() -> Result<u64, getrandom::Error> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
