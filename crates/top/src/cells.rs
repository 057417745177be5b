//! Text that fits into cells: cut to columns, and short forms of numbers and times.
//!
//! Ground rules: foreign text is made visible here, before anything else sees it.

use std::borrow::Cow;
use std::time::Duration;

use leasehold::ClaimInfo;
use leasehold_monitor::text::visible;
use unicode_width::UnicodeWidthChar;

/// Returns the number of columns of a text.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Returns as much of the text as fits into so many columns, with `…` if something was cut off.
pub(crate) fn clip(text: &str, width: usize) -> Cow<'_, str> {
    if columns(text) <= width {
        return Cow::Borrowed(text);
    }
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used < width
    };
    let mut clipped: String = text.chars().take_while(fits).collect();
    if width > 0 {
        clipped.push('…');
    }
    Cow::Owned(clipped)
}

/// Returns the text in lines of at most so many columns, broken at spaces where that is possible.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut used) = (String::new(), 0);
    for word in text.split(' ') {
        let length = columns(word);
        if used > 0 && used + 1 + length > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        for c in word.chars() {
            let own = c.width().unwrap_or(0);
            if used + own > width {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(c);
            used += own;
        }
    }
    lines.push(line);
    lines
}

/// Returns the note of a claim, or its tag without a note, in one line.
pub(crate) fn claimant(info: &ClaimInfo) -> String {
    noted(info.note.as_str(), &info.id.tag())
}

/// Returns a note, or the beginning of the tag of a claim without a note.
pub(crate) fn noted(note: &str, tag: &str) -> String {
    match note {
        "" => format!("no note, tag {}", tag.get(..8).unwrap_or(tag)),
        note => visible(note),
    }
}

/// Writes a duration in at most seven columns: `45s`, `3m 12s`, `2h 3m`, `12d 3h`.
pub(crate) fn short(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        86_400..8_640_000 => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Writes the time from a moment to `now`; zero if the moment is later by this machine's clock.
pub(crate) fn since(moment_unix_ms: u64, now_unix_ms: u64) -> String {
    short(Duration::from_millis(now_unix_ms.saturating_sub(moment_unix_ms)))
}

/// Writes the time of the day in UTC: `09:05:07Z`.
pub(crate) fn clock(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3_600, seconds % 3_600 / 60, seconds % 60)
}

/// Writes a number with its digits in groups: `10,000`.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes a number and its noun: `1 lock`, `2 locks`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_its_columns() {
        assert_eq!(clip("abcdef", 6), "abcdef");
        assert_eq!(clip("abcdefg", 6), "abcde…");
        assert_eq!(clip("漢漢漢", 6), "漢漢漢");
        assert_eq!(clip("漢漢漢漢", 6), "漢漢…");
        assert_eq!(clip("abc", 1), "…");
        assert_eq!(clip("abc", 0), "");
    }

    #[test]
    fn lines_break_at_spaces_and_inside_long_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn durations_fit_into_seven_columns() {
        let text = |seconds| short(Duration::from_secs(seconds));
        assert_eq!(text(0), "0s");
        assert_eq!(text(3_599), "59m 59s");
        assert_eq!(text(86_399), "23h 59m");
        assert_eq!(text(90_000), "1d 1h");
        assert_eq!(text(8_639_999), "99d 23h");
        assert_eq!(text(8_640_000), "100d");
    }

    #[test]
    fn numbers_and_times_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(counted(1, "lock"), "1 lock");
        assert_eq!(clock(1_000), "00:00:01Z");
    }

    #[test]
    fn foreign_text_cannot_control_the_terminal() {
        assert_eq!(noted("\x1b[2J", "0"), "\\u{1b}[2J");
        assert_eq!(noted("", "0123456789"), "no note, tag 01234567");
    }
}
