//! Foreign text, made fit for a screen; durations and points in time, for people.
//!
//! Ground rules: names and notes come from other users of the store. What is shown of them goes through
//! [`visible`] first.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the text with everything spelled out that a terminal would obey or a reader could not see.
pub fn visible(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_treacherous(c) {
            let _ = write!(clean, "{}", c.escape_default());
        } else {
            clean.push(c);
        }
    }
    clean
}

/// Writes a duration to the second, in its two largest units: `3m 12s`.
pub fn duration(length: Duration) -> String {
    let seconds = length.as_secs();
    if seconds == 0 {
        return format!("{}ms", length.as_millis());
    }
    let text = humantime::format_duration(Duration::from_secs(seconds)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Writes a point in time that the store reported, in UTC.
pub fn timestamp(unix_ms: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms)).filter(|_| unix_ms < END_OF_DISPLAY);
    time.map_or_else(|| format!("{unix_ms} ms"), |time| humantime::format_rfc3339_seconds(time).to_string())
}

/// Returns the age of a point in time by this machine's clock; zero if the store's clock is ahead. For
/// display only.
pub fn ago(unix_ms: u64) -> Duration {
    Duration::from_millis(unix_ms_now().saturating_sub(unix_ms))
}

/// Returns the present time by this machine's clock, in milliseconds of the Unix epoch. For display only.
pub fn unix_ms_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the present time, in UTC.
pub fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// Returns `true` for a character that changes the order in which a line is read, ends it, or leaves no mark on it.
///
/// These are the properties `Default_Ignorable_Code_Point` and `Bidi_Control` of Unicode 16, and in addition the
/// separators of lines and paragraphs, the controls of annotations and hieroglyphs, and symbols that are blank.
/// Marks that combine with a letter are not among them.
fn is_treacherous(c: char) -> bool {
    let at = TREACHEROUS.partition_point(|(_, last)| *last < c);
    TREACHEROUS.get(at).is_some_and(|(first, _)| *first <= c)
}

/// The first and last characters of each range, in order.
const TREACHEROUS: &[(char, char)] = &[
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{13441}', '\u{13442}'),
    ('\u{16fe4}', '\u{16fe4}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d159}', '\u{1d159}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// The year 9999, beyond which no timestamp is written.
const END_OF_DISPLAY: u64 = 253_402_300_800_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of each range of characters that no font draws, and some of those that turn the direction.
    const INVISIBLE: &[char] = &[
        '\u{ad}',
        '\u{34f}',
        '\u{61c}',
        '\u{115f}',
        '\u{1160}',
        '\u{17b4}',
        '\u{17b5}',
        '\u{180b}',
        '\u{180e}',
        '\u{180f}',
        '\u{200b}',
        '\u{200e}',
        '\u{200f}',
        '\u{2028}',
        '\u{202a}',
        '\u{202e}',
        '\u{2060}',
        '\u{2066}',
        '\u{206f}',
        '\u{2800}',
        '\u{3164}',
        '\u{fe00}',
        '\u{fe0f}',
        '\u{feff}',
        '\u{ffa0}',
        '\u{fff0}',
        '\u{fff9}',
        '\u{fffb}',
        '\u{13430}',
        '\u{1343f}',
        '\u{16fe4}',
        '\u{1bca0}',
        '\u{1bca3}',
        '\u{1d159}',
        '\u{1d173}',
        '\u{1d17a}',
        '\u{e0000}',
        '\u{e007f}',
        '\u{e0100}',
        '\u{e01ef}',
        '\u{e0fff}',
    ];

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(visible("host=a pid=1"), "host=a pid=1");
        assert_eq!(visible("a\x1b[2Jb\r\nc\u{9b}d"), "a\\u{1b}[2Jb\\r\\nc\\u{9b}d");
        assert_eq!(visible("\u{202e}txt.exe"), "\\u{202e}txt.exe");
        assert_eq!(visible("käse «x» 漢"), "käse «x» 漢");
        assert_eq!(visible("cafe\u{301} \u{926}\u{94d} \u{1f512}"), "cafe\u{301} \u{926}\u{94d} \u{1f512}");
        for c in INVISIBLE {
            let text = visible(&format!("pay{c}roll"));
            assert_eq!(text, format!("pay{}roll", c.escape_unicode()));
        }
    }

    #[test]
    fn durations_are_short() {
        assert_eq!(duration(Duration::from_millis(12)), "12ms");
        assert_eq!(duration(Duration::from_millis(192_700)), "3m 12s");
        assert_eq!(duration(Duration::from_secs(2 * 86_400 + 3 * 3600 + 61)), "2days 3h");
    }

    #[test]
    fn no_timestamp_panics() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(END_OF_DISPLAY - 1), "9999-12-31T23:59:59Z");
        assert_eq!(timestamp(u64::MAX), format!("{} ms", u64::MAX));
    }
}
