//! Text for people. What is shared with other views comes from `leasehold-monitor`.

use crate::output::redact::redacted_name;

pub(crate) use leasehold_monitor::text::{ago, duration, now, timestamp, visible};

/// Returns the name of a lock for people. A name may be a URL, which may have a password.
pub(crate) fn visible_name(name: &str) -> String {
    visible(&redacted_name(name))
}

/// Returns as much of the text as fits into so many columns, with `…` if something was cut off.
pub(crate) fn clipped(text: &str, columns: usize) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut taken = 0;
    for (at, c) in text.char_indices() {
        taken += columns_of(c);
        let is_last = text.len() == at + c.len_utf8();
        if taken + usize::from(!is_last) > columns {
            clean.push('…');
            break;
        }
        clean.push(c);
    }
    clean
}

/// Returns one for a character that is one column wide everywhere; two for any other, which is never too
/// little.
fn columns_of(c: char) -> usize {
    let is_narrow = c < '\u{300}' || matches!(c, '\u{2010}'..='\u{2027}');
    if is_narrow { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_to_its_columns() {
        assert_eq!(clipped("abcdef", 6), "abcdef");
        assert_eq!(clipped("abcdefg", 6), "abcde…");
        assert_eq!(clipped("漢漢漢", 6), "漢漢漢");
        assert_eq!(clipped("漢漢漢漢", 6), "漢漢…");
        assert_eq!(clipped("", 6), "");
    }
}
