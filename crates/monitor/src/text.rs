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

/// Characters that change the order in which a line is read, or take no room in it.
fn is_treacherous(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// The year 9999, beyond which no timestamp is written.
const END_OF_DISPLAY: u64 = 253_402_300_800_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(visible("host=a pid=1"), "host=a pid=1");
        assert_eq!(visible("a\x1b[2Jb\r\nc\u{9b}d"), "a\\u{1b}[2Jb\\r\\nc\\u{9b}d");
        assert_eq!(visible("\u{202e}txt.exe"), "\\u{202e}txt.exe");
        assert_eq!(visible("käse «x» 漢"), "käse «x» 漢");
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
