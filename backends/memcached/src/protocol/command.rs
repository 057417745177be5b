//! Commands that are sent: five of them, built from validated parts only.
//!
//! Reads and deletes are meta commands; writes are not. A meta set that finds no memory for the new item
//! *removes the old one*, even where it was only to add, so that an attempt to take a lock would free it.
//! `add` and `cas` of the older text protocol leave it alone.
//!
//! Ground rules: nothing reaches the wire but verbs, numbers, a [`Key`], and a value behind its length. So
//! no name and no note can begin a command of its own.

use std::time::Duration;

/// The longest key of the protocol, in bytes.
pub(crate) const MAX_KEY: usize = 250;

/// The longest value that is sent or accepted, in bytes.
pub(crate) const MAX_VALUE: usize = 1024 * 1024;

/// The room for the words of a command beside its key and value.
const MAX_WORDS: usize = 64;

/// The longest time to live that is not taken for a date.
const MAX_LIFE: u64 = 30 * 24 * 3600;

/// A key as the protocol allows it: 1 to 250 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(String);

impl Key {
    /// Creates a key; `None` for what the protocol could not carry.
    pub(crate) fn new(text: String) -> Option<Key> {
        let fits = (1..=MAX_KEY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then_some(Key(text))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The life of an item: the server counts in whole seconds, and ends it within the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life(u64);

impl Life {
    /// Without an end: until it is removed or evicted.
    pub(crate) const FOR_EVER: Life = Life(0);

    /// Creates the life for a time, rounded up. Never no time at all, which would mean for ever.
    pub(crate) fn of(time: Duration) -> Life {
        let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
        Life(seconds.clamp(1, MAX_LIFE))
    }

    /// Creates the life of an item that must not end before this time, also on a server that was paused.
    pub(crate) fn of_lease(time: Duration) -> Life {
        Life::of(time.saturating_add(CLOCK_LAG))
    }
}

/// The time by which the clock of the server may be behind. A timer of the server sets the clock once in a second, and
/// what comes while the timer is late counts from the last time: a process that was stopped may answer first, and then
/// set its clock.
pub(crate) const CLOCK_LAG: Duration = Duration::from_secs(3);

/// One command.
#[derive(Clone, Debug)]
pub(crate) enum Command<'a> {
    /// The item, with its number and what is left of its life.
    Look { key: &'a Key },
    /// Puts an item where there is none.
    Add { key: &'a Key, life: Life, value: &'a [u8] },
    /// Replaces a value that has this number.
    Replace { key: &'a Key, life: Life, value: &'a [u8], number: u64 },
    /// Removes an item that has this number.
    Remove { key: &'a Key, number: u64 },
    /// The facts that the server reports of itself, or of the named part of itself.
    Stats { part: &'static str },
}

impl Command<'_> {
    /// Writes the command. `mark` is returned with the answers to reads and removals.
    pub(crate) fn write(&self, mark: u32, out: &mut Vec<u8>) {
        let mut line = Line(out);
        match self {
            Command::Look { key } => line.text("mg ").text(key.as_str()).text(" v c t O").number(mark),
            Command::Add { key, life, value } => {
                line.text("add ").text(key.as_str()).text(" 0 ").number(life.0);
                line.text(" ").number(value.len()).text("\r\n").bytes(value)
            }
            Command::Replace { key, life, value, number } => {
                line.text("cas ").text(key.as_str()).text(" 0 ").number(life.0);
                line.text(" ").number(value.len()).text(" ").number(*number).text("\r\n").bytes(value)
            }
            Command::Remove { key, number } => {
                line.text("md ").text(key.as_str()).text(" C").number(*number).text(" O").number(mark)
            }
            Command::Stats { part: "" } => line.text("stats"),
            Command::Stats { part } => line.text("stats ").text(part),
        };
        line.text("\r\n");
    }

    /// Returns the number of bytes that it has at most, mostly.
    pub(crate) fn length(&self) -> usize {
        let (key, value) = match self {
            Command::Look { key } | Command::Remove { key, .. } => (key.as_str().len(), 0),
            Command::Add { key, value, .. } | Command::Replace { key, value, .. } => {
                (key.as_str().len(), value.len())
            }
            Command::Stats { part } => (part.len(), 0),
        };
        MAX_WORDS + key + value
    }

    /// Returns about how many bytes it has.
    pub(crate) fn size(&self) -> usize {
        match self {
            Command::Add { value, .. } | Command::Replace { value, .. } => 2 * MAX_KEY + value.len(),
            Command::Look { .. } | Command::Remove { .. } | Command::Stats { .. } => 2 * MAX_KEY,
        }
    }

    /// Returns `true` if it may change anything.
    pub(crate) fn changes(&self) -> bool {
        !matches!(self, Command::Look { .. } | Command::Stats { .. })
    }
}

/// A line that is written without the general machinery of formatting, which takes several times as long.
struct Line<'a>(&'a mut Vec<u8>);

impl Line<'_> {
    fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    fn number(&mut self, number: impl itoa::Integer) -> &mut Self {
        self.text(itoa::Buffer::new().format(number))
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(command: &Command<'_>) -> String {
        let mut out = Vec::new();
        command.write(7, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn commands_are_written_as_the_server_reads_them() {
        let key = &Key::new("lh:job".to_owned()).unwrap();
        let life = Life::of(Duration::from_millis(2_001));
        assert_eq!(written(&Command::Look { key }), "mg lh:job v c t O7\r\n");
        assert_eq!(written(&Command::Add { key, life, value: b"a b" }), "add lh:job 0 3 3\r\na b\r\n");
        let replace = Command::Replace { key, life, value: b"", number: 9 };
        assert_eq!(written(&replace), "cas lh:job 0 3 0 9\r\n\r\n");
        assert_eq!(written(&Command::Remove { key, number: 9 }), "md lh:job C9 O7\r\n");
        assert_eq!(written(&Command::Stats { part: "" }), "stats\r\n");
        assert_eq!(written(&Command::Stats { part: "settings" }), "stats settings\r\n");
    }

    #[test]
    fn no_life_is_endless_or_a_date() {
        assert_eq!(Life::of(Duration::ZERO), Life(1));
        assert_eq!(Life::of(Duration::from_secs(5)), Life(5));
        assert_eq!(Life::of(Duration::MAX), Life(MAX_LIFE));
    }

    proptest! {
        #[test]
        fn no_key_ends_its_command(text in "(?s).{0,300}") {
            if let Some(key) = Key::new(text) {
                let line = written(&Command::Look { key: &key });
                prop_assert_eq!(line.find(['\r', '\n']), Some(line.len() - 2));
                prop_assert_eq!(line.split(' ').count(), 6);
            }
        }

        #[test]
        fn value_follows_its_own_length(value in proptest::collection::vec(any::<u8>(), 0..200)) {
            let key = &Key::new("k".to_owned()).unwrap();
            let mut out = Vec::new();
            Command::Add { key, life: Life(2), value: &value }.write(0, &mut out);
            let head = format!("add k 0 2 {}\r\n", value.len());
            prop_assert!(out.starts_with(head.as_bytes()));
            prop_assert_eq!(out.len(), head.len() + value.len() + 2);
        }
    }
}
