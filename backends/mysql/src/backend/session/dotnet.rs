//! The name of a lock of .NET's DistributedLock on these servers, so that both exclude each other.
//!
//! A name of up to 64 characters without a large letter is used as it is. Any other becomes its small
//! letters, cut, with a digest of the name as it was behind them. Characters are those of .NET: two for one
//! beyond the first 65,536.

use sha2::{Digest, Sha512};

/// Returns the lock that a name means.
pub(crate) fn lock_name(name: &str) -> String {
    let small: String = name.chars().map(small).collect();
    let units: Vec<u16> = small.encode_utf16().collect();
    if small == name && units.len() <= MAX_UNITS {
        return small;
    }
    let kept = &units[..units.len().min(MAX_UNITS - DIGITS)];
    // What is cut in the middle of a character is sent as .NET sends it.
    String::from_utf16_lossy(kept) + &digest(name)
}

/// Returns a letter alone, by the rules of no language in particular: where that would be several, it
/// stays.
fn small(letter: char) -> char {
    let mut letters = letter.to_lowercase();
    match (letters.next(), letters.next()) {
        (Some(one), None) => one,
        _ => letter,
    }
}

/// Returns the first bits of SHA-512, five by five from the lowest of each byte on.
fn digest(name: &str) -> String {
    let bytes = Sha512::digest(name.as_bytes());
    let (mut rest, mut bits, mut bytes) = (0u32, 0, bytes.iter());
    let mut digits = String::with_capacity(DIGITS);
    for _ in 0..DIGITS {
        if bits < 5 {
            rest |= u32::from(bytes.next().copied().unwrap_or_default()) << bits;
            bits += 8;
        }
        digits.push(char::from(ALPHABET[(rest & 31) as usize]));
        rest >>= 5;
        bits -= 5;
    }
    digits
}

const MAX_UNITS: usize = 64;
const DIGITS: usize = 32;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_computed_vector_comes_out() {
        assert_eq!(lock_name("MyLock"), "mylock6isuyjwnkexb4ujf4m7j37hstmoxe3vx");
    }

    #[test]
    fn only_short_lowercase_names_are_used_unchanged() {
        let (longest, longer) = ("x".repeat(64), "x".repeat(65));
        assert_eq!(lock_name(&longest), longest);
        for long in [&longer, &"X".repeat(64), &"\u{10400}".repeat(40), &"é".repeat(65)] {
            let name = lock_name(long);
            assert_eq!(name.encode_utf16().count(), 64, "{name}");
            assert!(name.ends_with(&digest(long)), "{name}");
        }
        assert_ne!(lock_name(&longer), lock_name(&"x".repeat(66)));
        assert_eq!(lock_name("orders/42 作业"), "orders/42 作业");
        assert!(lock_name("É").starts_with('é'));
    }
}
