//! Which advisory lock of PostgreSQL a name means, as .NET's DistributedLock derives it, so that both
//! exclude each other.
//!
//! Up to nine characters of ASCII, sixteen hexadecimal digits, and eight, a comma and eight, are used as
//! they are; anything else is hashed, and two names may then meet in one key.

/// One key. PostgreSQL keeps keys of one number and of two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    One(i64),
    Two(i32, i32),
}

impl Key {
    pub(crate) fn of(name: &str) -> Key {
        let plain = packed(name).map(Key::halves).or_else(|| from_digits(name));
        plain.unwrap_or_else(|| {
            let digest = sha1_smol::Sha1::from(name.as_bytes()).digest().bytes();
            let [a, b, c, d, e, f, g, h, ..] = digest;
            Key::One(i64::from_le_bytes([a, b, c, d, e, f, g, h]))
        })
    }

    /// Returns the numbers as the statements take them: whether it is one, that one, or the two.
    pub(crate) fn numbers(self) -> (bool, i64, i32, i32) {
        match self {
            Key::One(one) => (true, one, 0, 0),
            Key::Two(high, low) => (false, 0, high, low),
        }
    }

    /// Returns the key as it is written beside the name.
    pub(crate) fn text(self) -> String {
        match self {
            Key::One(one) => one.to_string(),
            Key::Two(high, low) => format!("{high},{low}"),
        }
    }

    fn halves(bits: u64) -> Key {
        let (high, low) = ((bits >> 32) as u32, bits as u32);
        Key::Two(high.cast_signed(), low.cast_signed())
    }
}

/// Packs a name: seven bits for each character, a zero, and ones for what is missing of nine.
fn packed(name: &str) -> Option<u64> {
    if name.len() > MAX_PACKED || !name.is_ascii() {
        return None;
    }
    let characters = name.bytes().fold(0u64, |bits, byte| bits << 7 | u64::from(byte));
    let missing = 7 * (MAX_PACKED - name.len());
    Some(characters << 1 << missing | ((1 << missing) - 1))
}

fn from_digits(name: &str) -> Option<Key> {
    let number = |digits: &str| {
        let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    };
    match name.split_once(',') {
        None if name.len() == 16 => Some(Key::One(number(name)?.cast_signed())),
        Some((high, low)) if high.len() == 8 && low.len() == 8 => {
            Some(Key::halves(number(high)? << 32 | number(low)?))
        }
        _ => None,
    }
}

const MAX_PACKED: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_vectors_come_out() {
        assert_eq!(Key::of("a"), Key::Two(-1_023_410_177, -1));
        assert_eq!(packed("a"), Some(0xc2ff_ffff_ffff_ffff));
        assert_eq!(Key::of("MyLock"), Key::Two(-1_679_399_172, 2_061_500_415));
        assert_eq!(packed("MyLock"), Some(0x9be6_66fc_7adf_ffff));
        assert_eq!(Key::of("MyLockName"), Key::One(4_062_898_426_641_073_528));
    }

    #[test]
    fn hexadecimal_digits_are_used_unchanged() {
        assert_eq!(Key::of("00000000000000ff"), Key::One(255));
        assert_eq!(Key::of("ffffffffffffffff"), Key::One(-1));
        assert_eq!(Key::of("00000001,ffffffff"), Key::Two(1, -1));
        let is_hashed = |name: &str| packed(name).is_none() && from_digits(name).is_none();
        assert!(is_hashed("0000000g000000ff") && !is_hashed("00000001,ffffffff"));
        assert!(!is_hashed("123456789") && is_hashed("1234567890") && is_hashed("é"));
    }

    #[test]
    fn names_of_up_to_nine_characters_never_meet() {
        let names = ["", "a", "b", "ab", "aa", "a\u{7f}", "\u{7f}", "123456789", "12345678"];
        let keys: std::collections::HashSet<Key> = names.iter().map(|name| Key::of(name)).collect();
        assert_eq!(keys.len(), names.len());
    }
}
