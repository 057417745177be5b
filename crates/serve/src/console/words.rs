//! Durations, moments and counts, for people.
//!
//! Ground rules: a duration is written as the script of the pages writes it, so that a page does not flicker
//! when the script takes over.

use std::time::Duration;

use leasehold_monitor::text::{timestamp, visible};
use maud::{Markup, html};

/// Returns at most so many characters of a foreign text, made visible, with `…` if something was cut off.
pub(super) fn clipped(text: &str, most: usize) -> String {
    let clean = visible(text);
    match clean.char_indices().nth(most) {
        None => clean,
        Some(_) => clean.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Writes a duration in its two largest units: `3 min 12 s`.
pub(super) fn length(length: Duration) -> String {
    let seconds = length.as_secs();
    let Some(at) = UNITS.iter().position(|(_, size)| seconds >= *size) else { return "0 s".to_owned() };
    let (unit, size) = UNITS[at];
    let whole = format!("{} {unit}", seconds / size);
    match UNITS.get(at + 1).map(|(unit, smaller)| (unit, seconds % size / smaller)) {
        Some((unit, rest)) if rest > 0 => format!("{whole} {rest} {unit}"),
        _ => whole,
    }
}

/// Writes a duration that may be short: `34 ms`.
pub(super) fn short(took: Duration) -> String {
    if took < Duration::from_secs(1) { format!("{} ms", took.as_millis()) } else { length(took) }
}

const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];

/// Writes a moment in UTC, to the second: `2026-03-01 12:00:05 UTC`.
pub(super) fn moment(unix_ms: u64) -> String {
    let text = timestamp(unix_ms);
    match text.trim_end_matches('Z').split_once('T') {
        Some((day, time)) => format!("{day} {time} UTC"),
        None => text,
    }
}

/// Writes the time of day of a moment, in UTC: `12:00:05`.
pub(super) fn time_of_day(unix_ms: u64) -> String {
    let text = timestamp(unix_ms);
    match text.trim_end_matches('Z').split_once('T') {
        Some((_, time)) => time.to_owned(),
        None => text,
    }
}

/// Writes a moment in UTC, without the day if that is the present one.
pub(super) fn moment_near(unix_ms: u64, now_ms: u64) -> String {
    if unix_ms / DAY_MS == now_ms / DAY_MS {
        format!("{} UTC", time_of_day(unix_ms))
    } else {
        moment(unix_ms)
    }
}

const DAY_MS: u64 = 86_400_000;

/// Returns the age of a moment, which the script counts on. Zero if the store's clock is ahead of ours.
pub(super) fn age(since_ms: u64, now_ms: u64) -> Markup {
    let age = Duration::from_millis(now_ms.saturating_sub(since_ms));
    // What cannot be written as a date is not one for browsers either.
    let datetime = Some(timestamp(since_ms)).filter(|text| text.contains('T'));
    html! {
        time datetime=[datetime] title=(moment(since_ms)) data-since=(since_ms) { (length(age)) }
    }
}

/// Returns the number and the noun in the form that belongs to it.
pub(super) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// Writes a number with a narrow space between thousands.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_their_two_largest_units() {
        let text = |seconds| length(Duration::from_secs(seconds));
        assert_eq!(text(0), "0 s");
        assert_eq!(text(59), "59 s");
        assert_eq!(text(60), "1 min");
        assert_eq!(text(192), "3 min 12 s");
        assert_eq!(text(3_600 + 61), "1 h 1 min");
        assert_eq!(text(2 * 86_400 + 59), "2 d");
        assert_eq!(short(Duration::from_millis(34)), "34 ms");
    }

    #[test]
    fn moments_are_in_utc_and_none_panics() {
        assert_eq!(moment(1_000), "1970-01-01 00:00:01 UTC");
        assert_eq!(time_of_day(61_000), "00:01:01");
        assert_eq!(moment_near(61_000, 90_000), "00:01:01 UTC");
        assert_eq!(moment_near(61_000, 90_000_000), "1970-01-01 00:01:01 UTC");
        assert_eq!(moment(u64::MAX), format!("{} ms", u64::MAX));
        let page = age(u64::MAX, 5).into_string();
        assert!(page.contains(">0 s<") && !page.contains("datetime"), "{page}");
    }

    #[test]
    fn foreign_text_is_made_visible_and_cut() {
        assert_eq!(clipped("abcdef", 6), "abcdef");
        assert_eq!(clipped("abcdefg", 6), "abcde…");
        assert_eq!(clipped("\u{202e}a", 20), "\\u{202e}a");
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(10_000), "10\u{202f}000");
        assert_eq!(count(1, "lock", "locks"), "1 lock");
        assert_eq!(count(1_234_567, "lock", "locks"), "1\u{202f}234\u{202f}567 locks");
    }
}
