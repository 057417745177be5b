//! The values that an option may have.

use std::fmt;
use std::time::Duration;

/// The values that an option may have, beside the words of a choice.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// One of the option's words.
    Words,
    /// A duration in these bounds.
    Duration { min: Duration, max: Duration },
    /// A whole number in these bounds.
    Number { min: u32, max: u32 },
    /// ASCII letters, digits and `others`.
    Plain { min: usize, max: usize, others: &'static str },
    /// A name in SQL.
    SqlName { max: usize },
    /// Any text without control characters.
    Text { max: usize },
    /// The path of a file.
    File,
    /// A path from the root.
    Rooted,
}

impl Shape {
    /// Returns `true` if the text is one of these values.
    pub(crate) fn admits(&self, text: &str) -> bool {
        let plain = |others: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c));
        match *self {
            // Those are known by the option.
            Shape::Words => true,
            Shape::Duration { min, max } => {
                humantime::parse_duration(text).is_ok_and(|duration| (min..=max).contains(&duration))
            }
            Shape::Number { min, max } => text.parse().is_ok_and(|number| (min..=max).contains(&number)),
            Shape::Plain { min, max, others } => (min..=max).contains(&text.len()) && plain(others),
            Shape::SqlName { max } => {
                (1..=max).contains(&text.len())
                    && plain("_")
                    && !text.starts_with(|c: char| c.is_ascii_digit())
            }
            Shape::Text { max } => text.len() <= max && !text.chars().any(char::is_control),
            Shape::File => !text.is_empty() && !text.chars().any(char::is_control),
            Shape::Rooted => text.starts_with('/'),
        }
    }
}

impl fmt::Display for Shape {
    /// Writes what is allowed, for an error and for the documentation alike.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Shape::Words => f.write_str("a word"),
            Shape::Duration { min, max } => {
                let (min, max) = (humantime::format_duration(min), humantime::format_duration(max));
                write!(f, "a duration between {min} and {max}")
            }
            Shape::Number { min, max } => write!(f, "a number from {min} to {max}"),
            Shape::Plain { min, max, others } => {
                let others: Vec<String> = others.chars().map(String::from).collect();
                write!(f, "{min} to {max} of the characters A-Z a-z 0-9 {}", others.join(" "))
            }
            Shape::SqlName { max } => {
                write!(f, "1 to {max} of the characters A-Z a-z 0-9 _, no digit first")
            }
            Shape::Text { max } => write!(f, "at most {max} bytes without control characters"),
            Shape::File => f.write_str("the path of a file"),
            Shape::Rooted => f.write_str("a path that begins with /"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_has_bounds_and_says_them() {
        let seconds = Duration::from_secs;
        for (shape, good, bad, said) in [
            (
                Shape::Duration { min: seconds(1), max: seconds(300) },
                "1s 5m 1m30s",
                "999ms 5m1s soon 7",
                "1s and 5m",
            ),
            (Shape::Number { min: 1, max: 100 }, "1 100", "0 101 -1 x 1.5", "from 1 to 100"),
            (
                Shape::Plain { min: 1, max: 3, others: "./" },
                "a a/b .",
                "a/bc a_b ä",
                "1 to 3 of the characters A-Z a-z 0-9 . /",
            ),
            (Shape::SqlName { max: 6 }, "_Jobs1 a", "1a a-b a\" a` a; ä Jobs_12", "no digit first"),
            (Shape::Text { max: 3 }, "a:b ä", "four a\u{1b}", "at most 3 bytes"),
            (Shape::File, "a /a", "", "path"),
            (Shape::Rooted, "/a", "a ./a", "begins with /"),
        ] {
            assert!(good.split(' ').all(|text| shape.admits(text)), "{shape}");
            assert!(!bad.split(' ').any(|text| shape.admits(text)), "{shape}");
            assert!(shape.to_string().contains(said), "{shape}");
        }
        let plain = |min| Shape::Plain { min, max: 3, others: "" };
        assert!(plain(0).admits("") && !plain(1).admits("") && !Shape::SqlName { max: 3 }.admits(""));
    }
}
