//! The changes of inputs.

use crate::random::Random;

/// Returns an input of the pool, changed in a few places.
pub(crate) fn changed(random: &mut Random, pool: &[Vec<u8>], words: &[Vec<u8>]) -> Vec<u8> {
    let mut input = random.pick(pool).cloned().unwrap_or_default();
    for _ in 0..=random.below(MOST_CHANGES) {
        change(random, &mut input, pool, words);
    }
    input.truncate(LONGEST);
    input
}

fn change(random: &mut Random, input: &mut Vec<u8>, pool: &[Vec<u8>], words: &[Vec<u8>]) {
    let at = random.below(input.len() + 1);
    match random.below(12) {
        0 => flip(random, input),
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = random.next().to_le_bytes()[0];
            }
        }
        2 => drop(input.drain(range(random, input.len()))),
        3 => {
            let twice = input[range(random, input.len())].to_vec();
            insert(input, at, &twice);
        }
        4 => insert(input, at, random.pick(EDGES).copied().unwrap_or_default().as_bytes()),
        5 => insert(input, at, &random.pick(words).cloned().unwrap_or_default()),
        6 => input.truncate(at),
        7 => {
            let other = random.pick(pool).cloned().unwrap_or_default();
            let part = &other[range(random, other.len())];
            input.truncate(at);
            input.extend_from_slice(part);
        }
        8 => replace_number(random, input),
        9 => swap_parts(random, input),
        10 => {
            let range = range(random, input.len());
            let word = random.pick(words).cloned().unwrap_or_default();
            drop(input.splice(range, word));
        }
        _ => insert(input, at, &random.next().to_le_bytes()[..random.below(8)]),
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    drop(input.splice(at..at, bytes.iter().copied()));
}

fn flip(random: &mut Random, input: &mut [u8]) {
    let (at, bit) = (random.below(input.len()), random.below(8));
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << bit;
    }
}

/// Returns a range of a text, mostly a short one.
fn range(random: &mut Random, length: usize) -> std::ops::Range<usize> {
    let begin = random.below(length + 1);
    let most = length - begin;
    let span = if random.below(4) == 0 { random.below(most + 1) } else { random.below(most.min(8) + 1) };
    begin..begin + span
}

/// Puts another number in the place of one: lengths and counts are what parsers trust too much.
fn replace_number(random: &mut Random, input: &mut Vec<u8>) {
    let from = random.below(input.len());
    let Some(begin) = input.iter().skip(from).position(u8::is_ascii_digit).map(|step| from + step) else {
        return;
    };
    let digits = input[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number: Option<u64> =
        std::str::from_utf8(&input[begin..begin + digits]).ok().and_then(|text| text.parse().ok());
    let text = match (random.below(3), number) {
        (0, Some(number)) => number.wrapping_add(1).to_string(),
        (1, Some(number)) => number.saturating_sub(1).to_string(),
        _ => random.pick(NUMBERS).copied().unwrap_or_default().to_owned(),
    };
    drop(input.splice(begin..begin + digits, text.into_bytes()));
}

/// Swaps two parts that the same separator ends.
fn swap_parts(random: &mut Random, input: &mut Vec<u8>) {
    let separator = random.pick(b"\n ,:/&").copied().unwrap_or(b' ');
    let mut parts: Vec<&[u8]> = input.split(|byte| *byte == separator).collect();
    let (one, other) = (random.below(parts.len()), random.below(parts.len()));
    parts.swap(one, other);
    *input = parts.join(&separator);
}

/// The changes of one input.
const MOST_CHANGES: usize = 5;
const LONGEST: usize = 16 * 1024;
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "00",
    "9",
    "10",
    "127",
    "255",
    "256",
    "1024",
    "32768",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999",
    "1e9",
];
/// Texts at the edges of what parsers accept.
const EDGES: &[&str] = &[
    "\r\n", "\n", "\r", " ", "\0", "\t", "%", "%2", "%00", "%ff", "é", "\u{2028}", "\u{feff}", "\"", "\\",
    "'", "{", "}", "[", "]", "=", "&", "?", "#", "@", ":", "//", "..", "-", "+", "*",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_parts_are_changed() {
        let mut random = Random::new(7);
        let pool = vec![b"VA 12 c34\r\nvalue\r\n".to_vec()];
        let inputs: Vec<Vec<u8>> = (0..5_000).map(|_| changed(&mut random, &pool, &[])).collect();
        let has = |part: &[u8]| inputs.iter().any(|it| it.windows(part.len()).any(|window| window == part));
        assert!(has(b"VA 13 c34") && has(b"VA 12 c18446744073709551615") && has(b"12 VA c34"));
        assert!(inputs.iter().all(|input| input.len() <= LONGEST));
    }
}
