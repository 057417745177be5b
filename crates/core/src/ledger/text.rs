//! The queue as text, for stores that keep it in a file, a row or a value.
//!
//! One header line with the version, the length and a checksum of the body; then one line for the head of
//! the store, one for the last fence, one for each claim. Any text that is not exactly what
//! [`Ledger::to_text`] wrote is refused: a store must be able to distinguish a damaged ledger from an empty
//! one.
//!
//! There are two forms. Where one clock ends the claims of all, an end is a moment of that clock. Where
//! each observer measures by its own clock, an end is a span, and the count of signs of life is beside it.
//! Neither form can be read as the other, nor by a release that knows only one of them.

use std::fmt::Write;
use std::str::FromStr;

use super::{Entry, Ledger};
use crate::{ClaimId, Fence, Moment, Note, Share};

impl Ledger {
    /// Writes the ledger as text, together with `head`: text of the store's own, under the same checksum.
    /// Signs of life are not counted in it, as the moments suffice.
    pub fn to_text(&self, head: &str) -> String {
        self.written(head, Form::Moments)
    }

    /// Writes the ledger as [`Ledger::to_text`] does, for observers that share no clock: `until` is a
    /// span since the moment [`Moment::START`], and `beats` is written, too.
    pub fn to_span_text(&self, head: &str) -> String {
        self.written(head, Form::Spans)
    }

    fn written(&self, head: &str, form: Form) -> String {
        let notes: usize = self.entries.iter().map(|entry| entry.note.as_str().len()).sum();
        let mut body = String::with_capacity(head.len() + 32 + 128 * self.entries.len() + notes);
        escape(head, &mut body);
        body.push('\n');
        write_fence(self.last, &mut body);
        body.push('\n');
        for entry in &self.entries {
            write_entry(entry, form, &mut body);
        }
        let mut text = String::with_capacity(form.magic().len() + 40 + body.len());
        text.push_str(form.magic());
        text.push(' ');
        // A length fits into 64 bits.
        write_number(body.len() as u64, 1, &mut text);
        text.push(' ');
        text.push_str(&blake3::hash(body.as_bytes()).to_hex()[..CHECKSUM]);
        text.push('\n');
        text.push_str(&body);
        text
    }

    /// Reads what [`Ledger::to_text`] wrote, and the head of the store.
    ///
    /// # Errors
    /// [`DamagedLedger`] for everything else, be it a single changed byte.
    pub fn from_text(text: &[u8]) -> Result<(Ledger, String), DamagedLedger> {
        Ledger::read(text, Form::Moments)
    }

    /// Reads what [`Ledger::to_span_text`] wrote, and the head of the store.
    ///
    /// # Errors
    /// [`DamagedLedger`] for everything else, what [`Ledger::to_text`] wrote included.
    pub fn from_span_text(text: &[u8]) -> Result<(Ledger, String), DamagedLedger> {
        Ledger::read(text, Form::Spans)
    }

    fn read(text: &[u8], form: Form) -> Result<(Ledger, String), DamagedLedger> {
        let text = std::str::from_utf8(text).map_err(|_| DamagedLedger("it is not text"))?;
        let (header, body) = text.split_once('\n').ok_or(DamagedLedger("it has no header"))?;
        let sums = header.strip_prefix(form.magic()).and_then(|rest| rest.strip_prefix(' '));
        let (length, sum) =
            sums.and_then(|rest| rest.split_once(' ')).ok_or(DamagedLedger("its header is foreign"))?;
        if length != body.len().to_string() {
            return Err(DamagedLedger("it is cut short, or too long"));
        }
        if sum != checksum(body.as_bytes()) {
            return Err(DamagedLedger("its checksum does not fit"));
        }
        // What carries the checksum was written by us; the checks below are for other versions and for
        // forgeries.
        let body = body.strip_suffix('\n').ok_or(DamagedLedger("its last line has no end"))?;
        let mut lines = body.split('\n');
        let head = lines.next().and_then(unescape).ok_or(DamagedLedger("its head is unreadable"))?;
        let last = lines
            .next()
            .and_then(|line| line.parse::<Fence>().ok())
            .ok_or(DamagedLedger("it has no fence"))?;
        let entries: Option<Vec<Entry>> = lines.map(|line| read_entry(line, form)).collect();
        let entries = entries.ok_or(DamagedLedger("the line of a claim is unreadable"))?;
        Ok((Ledger::restore(entries, last), head))
    }
}

/// The error of a text that is not a ledger, or no longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored ledger is damaged: {0}")]
pub struct DamagedLedger(&'static str);

// Written for every request, and so without the general machinery of formatting, which takes twice as long.
fn write_entry(entry: &Entry, form: Form, out: &mut String) {
    let Entry { id, share, granted, until, since, beats, note } = entry;
    out.push_str(&id.to_hex());
    out.push(' ');
    for number in [share.weight(), share.capacity()] {
        write_number(number.into(), 1, out);
        out.push(' ');
    }
    match granted {
        Some(fence) => write_fence(*fence, out),
        None => out.push('-'),
    }
    out.push(' ');
    for moment in [*until, *since] {
        if moment == Moment::NEVER {
            out.push_str("never");
        } else {
            write_number(moment.as_nanos(), 1, out);
        }
        out.push(' ');
    }
    if form == Form::Spans {
        write_number(*beats, 1, out);
        out.push(' ');
    }
    escape(note.as_str(), out);
    out.push('\n');
}

/// Writes a fence as it is displayed.
fn write_fence(fence: Fence, out: &mut String) {
    if fence.epoch == 0 && fence.sub == 0 {
        return write_number(fence.seq, 20, out);
    }
    // Writing into a String does not fail.
    let _ = write!(out, "{fence}");
}

/// Writes a number in decimal digits, with zeros in front up to this width, which is at most 20.
fn write_number(mut number: u64, width: usize, out: &mut String) {
    let mut digits = [b'0'; 20];
    let mut first = digits.len();
    while number > 0 || digits.len() - first < width {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    // Digits are text.
    out.push_str(std::str::from_utf8(&digits[first..]).unwrap_or_default());
}

fn read_entry(line: &str, form: Form) -> Option<Entry> {
    let count = match form {
        Form::Moments => 7,
        Form::Spans => 8,
    };
    let mut fields = line.splitn(count, ' ');
    let id = ClaimId::from_hex(fields.next()?)?;
    let share = Share::permits(digits(fields.next()?)?, digits(fields.next()?)?).ok()?;
    let granted = match fields.next()? {
        "-" => None,
        fence => Some(fence.parse().ok()?),
    };
    let until = read_moment(fields.next()?)?;
    let since = read_moment(fields.next()?)?;
    let beats = match form {
        Form::Moments => 0,
        Form::Spans => digits(fields.next()?)?,
    };
    let note = Note::new(&unescape(fields.next()?)?).ok()?;
    Some(Entry { id, share, granted, until, since, beats, note })
}

fn read_moment(field: &str) -> Option<Moment> {
    if field == "never" {
        return Some(Moment::NEVER);
    }
    digits(field).map(Moment::from_nanos).filter(|moment| *moment != Moment::NEVER)
}

/// Reads a number as it was written: digits, without a sign and without zeros in front.
fn digits<N: FromStr>(field: &str) -> Option<N> {
    let plain = field.bytes().all(|byte| byte.is_ascii_digit()) && (field == "0" || !field.starts_with('0'));
    plain.then(|| field.parse().ok()).flatten()
}

/// Writes control characters and `%` as `%XX`, so that a line ends where it ends.
fn escape(text: &str, out: &mut String) {
    let mut rest = text;
    // Byte by byte: none of these is a part of a longer character.
    while let Some(at) = rest.bytes().position(|byte| byte == b'%' || byte.is_ascii_control()) {
        let (plain, escaped) = rest.split_at(at);
        out.push_str(plain);
        // It has one byte. Writing into a String does not fail.
        let _ = write!(out, "%{:02X}", escaped.as_bytes()[0]);
        rest = &escaped[1..];
    }
    out.push_str(rest);
}

fn unescape(text: &str) -> Option<String> {
    if text.contains(|c: char| c.is_ascii_control()) {
        return None;
    }
    let mut parts = text.split('%');
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        // Only what is escaped, and only as it is: a text is written in one way.
        let is_written = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
        let byte = u8::from_str_radix(digits, 16).ok().filter(|_| is_written)?;
        let plain_char = Some(char::from(byte)).filter(|c| *c == '%' || c.is_ascii_control())?;
        plain.push(plain_char);
        plain.push_str(rest);
    }
    Some(plain)
}

/// Returns the first 64 bits of BLAKE3: enough against damage, but not a protection against writers with
/// intent.
pub(crate) fn checksum(body: &[u8]) -> String {
    blake3::hash(body).to_hex()[..CHECKSUM].to_owned()
}

/// The digits of a checksum.
const CHECKSUM: usize = 16;

/// Form of the ends of claims in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Moments of a clock that all share.
    Moments,
    /// Spans that each observer measures, and how many signs of life there were.
    Spans,
}

impl Form {
    fn magic(self) -> &'static str {
        match self {
            Form::Moments => "leasehold-ledger 1",
            // The checksum covers the body alone, so the two words differ in more than one byte.
            Form::Spans => "leasehold-spans 1",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn moments() -> impl Strategy<Value = Moment> {
        prop_oneof![Just(Moment::NEVER), any::<u64>().prop_map(Moment::from_nanos)]
    }

    fn entries() -> impl Strategy<Value = Entry> {
        let share = prop_oneof![
            Just(Share::MUTEX),
            Just(Share::READER),
            Just(Share::WRITER),
            (1u32..9, 9u32..20).prop_map(|(k, n)| Share::permits(k, n).unwrap()),
        ];
        let fence =
            proptest::option::of((0u64..3, any::<u64>(), 0u32..3).prop_map(|(e, s, u)| Fence::new(e, s, u)));
        let note = prop_oneof![".{0,40}", "[ %\n\r\t\u{0}a\u{7f}é-]{0,20}"];
        (any::<[u8; 16]>(), share, fence, moments(), moments(), any::<u64>(), note).prop_map(
            |(id, share, granted, until, since, beats, note)| Entry {
                id: ClaimId::from_bytes(id),
                share,
                granted,
                until,
                since,
                beats,
                note: Note::clipped(&note),
            },
        )
    }

    fn ledgers() -> impl Strategy<Value = Ledger> {
        (proptest::collection::vec(entries(), 0..6), any::<u64>())
            .prop_map(|(entries, last)| Ledger::restore(entries, Fence::new(0, last, 0)))
    }

    proptest! {
        #[test]
        fn numbers_are_written_as_displayed(
            number in prop_oneof![any::<u64>(), Just(u64::MAX)], digits in 0u32..=20, epoch in 0u64..2, sub in 0u32..2,
        ) {
            // 20 digits are all that it has.
            let number = 10u64.checked_pow(digits).map_or(number, |size| number % size);
            let fence = Fence::new(epoch, number, sub);
            let mut written = String::new();
            write_number(number, 1, &mut written);
            written.push(' ');
            write_fence(fence, &mut written);
            prop_assert_eq!(written, format!("{number} {fence}"));
        }

        #[test]
        fn written_form_reads_back(ledger in ledgers(), head in "[ %\n\tabc é]{0,20}") {
            let text = ledger.to_span_text(&head);
            prop_assert_eq!(Ledger::from_span_text(text.as_bytes()), Ok((ledger.clone(), head.clone())));
            let text = ledger.to_text(&head);
            let uncounted = ledger.entries.into_iter().map(|entry| Entry { beats: 0, ..entry }).collect();
            let ledger = Ledger::restore(uncounted, ledger.last);
            prop_assert_eq!(Ledger::from_text(text.as_bytes()), Ok((ledger, head)));
        }

        #[test]
        fn neither_form_is_read_as_the_other(ledger in ledgers()) {
            prop_assert!(Ledger::from_text(ledger.to_span_text("job").as_bytes()).is_err());
            prop_assert!(Ledger::from_span_text(ledger.to_text("job").as_bytes()).is_err());
        }

        #[test]
        fn a_single_damaged_byte_is_noticed(ledger in ledgers(), at in any::<proptest::sample::Index>(), by in 1u8..=255) {
            for mut text in [ledger.to_text("boot 7"), ledger.to_span_text("boot 7")].map(String::into_bytes) {
                let at = at.index(text.len());
                text[at] = text[at].wrapping_add(by);
                prop_assert!(Ledger::from_text(&text).is_err() && Ledger::from_span_text(&text).is_err());
            }
        }

        #[test]
        fn a_cut_or_lengthened_text_is_noticed(ledger in ledgers(), at in any::<proptest::sample::Index>(), tail in "[ \na0]{1,4}") {
            let text = ledger.to_text("");
            prop_assert!(Ledger::from_text(&text.as_bytes()[..at.index(text.len())]).is_err());
            let longer = text + &tail;
            prop_assert!(Ledger::from_text(longer.as_bytes()).is_err());
        }

        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Ledger::from_text(&bytes).is_err() && Ledger::from_span_text(&bytes).is_err());
        }

        #[test]
        fn no_body_under_a_right_checksum_panics(body in "([0-9a-f]{32}|[ %\n0-9a-f-]|never){0,60}") {
            for form in [Form::Moments, Form::Spans] {
                let text = format!("{} {} {}\n{body}", form.magic(), body.len(), checksum(body.as_bytes()));
                if let Ok((ledger, head)) = Ledger::read(text.as_bytes(), form) {
                    let again = ledger.written(&head, form);
                    prop_assert_eq!(Ledger::read(again.as_bytes(), form), Ok((ledger, head)));
                }
            }
        }
    }

    /// Returns a ledger with one claim, whose last field is this note.
    fn claimed(note: &str) -> Ledger {
        let entry = Entry {
            id: ClaimId::from_bytes([0xab; 16]),
            share: Share::MUTEX,
            granted: Some(Fence::new(0, 7, 0)),
            until: Moment::NEVER,
            since: Moment::from_nanos(5),
            beats: 3,
            note: Note::clipped(note),
        };
        Ledger::restore(vec![entry], Fence::new(0, 9, 0))
    }

    /// The digit at the beginning of the note would be the count of the other form.
    #[test]
    fn no_damaged_byte_makes_a_text_of_the_other_form() {
        for ledger in [Ledger::default(), claimed("4 of 9")] {
            for text in [ledger.to_text("boot 7"), ledger.to_span_text("boot 7")].map(String::into_bytes) {
                for (at, by) in (0..text.len()).flat_map(|at| (1..=255).map(move |by| (at, by))) {
                    let mut damaged = text.clone();
                    damaged[at] = damaged[at].wrapping_add(by);
                    assert!(Ledger::from_text(&damaged).is_err(), "{}", damaged.escape_ascii());
                    assert!(Ledger::from_span_text(&damaged).is_err(), "{}", damaged.escape_ascii());
                }
            }
        }
    }

    #[test]
    fn the_form_is_stable() {
        let ledger = claimed("50% done\nhost a");
        let claim = "abababababababababababababababab 1 1 00000000000000000007 never 5";
        let texts = [
            ("leasehold-ledger 1", "", ledger.to_text("file")),
            ("leasehold-spans 1", " 3", ledger.to_span_text("file")),
        ];
        for (form, beats, text) in texts {
            let body = format!("file\n00000000000000000009\n{claim}{beats} 50%25 done%0Ahost a\n");
            let sum = checksum(body.as_bytes());
            assert_eq!(text, format!("{form} {} {sum}\n{body}", body.len()));
        }
    }
}
