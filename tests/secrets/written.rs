//! Texts that a program could have written down, and the search of secrets in them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::error::Error;
use std::fmt::{Debug, Display};

use leasehold::backend::ClaimId;

use crate::logged;

/// Texts, with where each is from.
#[derive(Default)]
pub(crate) struct Written(Vec<(String, String)>);

impl Written {
    /// Records a value in both forms of `Debug`.
    pub(crate) fn shown(&mut self, what: &str, value: &dyn Debug) {
        self.0.push((format!("{{:?}} of {what}"), format!("{value:?}")));
        self.0.push((format!("{{:#?}} of {what}"), format!("{value:#?}")));
    }

    /// Records an error, with all its sources.
    pub(crate) fn failed(&mut self, what: &str, error: &(dyn Error + 'static)) {
        let mut next = Some(error);
        while let Some(error) = next {
            self.shown(what, &error);
            self.record_text(what, &error);
            next = error.source();
        }
    }

    /// Records a text.
    pub(crate) fn record_text(&mut self, what: &str, text: &dyn Display) {
        self.0.push((format!("text of {what}"), text.to_string()));
    }

    /// Records a result: the value, if it can be shown, or the error.
    pub(crate) fn record_outcome<T: Debug>(&mut self, what: &str, outcome: &leasehold::Result<T>) {
        match outcome {
            Ok(value) => self.shown(what, value),
            Err(error) => self.failed(what, error),
        }
    }

    /// Adds the texts that another has recorded.
    pub(crate) fn also(&mut self, other: Written) {
        self.0.extend(other.0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails with each text that has one of these, and with each that was logged.
    pub(crate) fn have_none_of(mut self, store: &str, secrets: &[Secret]) {
        self.0.extend(logged::so_far().into_iter().map(|line| ("log".to_owned(), line)));
        let found = self.found(secrets);
        let first = &found[..found.len().min(20)];
        assert!(found.is_empty(), "on {store}, {} in all: {first:#?}", found.len());
    }

    fn found(&self, secrets: &[Secret]) -> Vec<String> {
        let starts = Starts::of(secrets);
        let mut found = Vec::new();
        let mut read = BTreeSet::new();
        for (of, text) in self.0.iter().filter(|(_, text)| read.insert(text)) {
            for (what, part) in starts.found_in(&forms(text)) {
                let text = text.chars().take(600).collect::<String>();
                found.push(format!("{what} ({part}) in the {of}: {text}"));
            }
        }
        found
    }
}

/// The parts of all secrets by how they begin, so that a text is read once, however many parts there are.
struct Starts<'a> {
    parts: HashMap<&'a [u8], Vec<(usize, &'a Secret, &'a str)>>,
    /// `true` at each pair of bytes with which a part begins: hardly any place of a text is such a pair.
    pairs: Vec<bool>,
}

/// No part has fewer bytes.
const START: usize = 8;

impl<'a> Starts<'a> {
    fn of(secrets: &'a [Secret]) -> Starts<'a> {
        let mut starts = Starts { parts: HashMap::new(), pairs: vec![false; 1 << 16] };
        for (number, secret) in secrets.iter().enumerate() {
            for part in &secret.parts {
                let start = &part.as_bytes()[..START];
                starts.parts.entry(start).or_default().push((number, secret, part.as_str()));
                starts.pairs[pair(start)] = true;
            }
        }
        starts
    }

    /// Returns each secret that is in one of the forms of a text, with a part of it that is there.
    fn found_in(&self, forms: &BTreeSet<String>) -> Vec<(&'static str, &'a str)> {
        let mut found = BTreeMap::new();
        for form in forms {
            let form = form.as_bytes();
            for at in 0..(form.len() + 1).saturating_sub(START) {
                if !self.pairs[pair(&form[at..])] {
                    continue;
                }
                for (number, secret, part) in self.parts.get(&form[at..at + START]).into_iter().flatten() {
                    if form[at..].starts_with(part.as_bytes()) {
                        found.entry(*number).or_insert((secret.what, *part));
                    }
                }
            }
        }
        found.into_values().collect()
    }
}

/// Returns the first two bytes as a number.
fn pair(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) << 8 | usize::from(bytes[1])
}

/// A text in small letters and without spaces: as it is, with its %XX decoded, and without the signs of
/// escapes.
fn forms(text: &str) -> BTreeSet<String> {
    let packed = |text: &str| -> String {
        text.chars().filter(|char| !char.is_whitespace()).collect::<String>().to_lowercase()
    };
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    BTreeSet::from([packed(text), packed(&decoded), packed(&decoded.replace('\\', ""))])
}

/// A secret that must not be in any text.
pub(crate) struct Secret {
    what: &'static str,
    parts: Vec<String>,
}

impl Secret {
    /// An id, or any other value that is drawn and written like one.
    pub(crate) fn id(what: &'static str, id: ClaimId) -> Secret {
        let hex = id.to_hex();
        let mut parts: Vec<String> = (0..=hex.len() - 12).map(|at| hex[at..at + 12].to_owned()).collect();
        parts.extend(lists(id.as_bytes()));
        // Of ids that are made of something else a part may be nothing but zeros.
        parts.retain(|part| part.chars().collect::<HashSet<_>>().len() > 3);
        Secret { what, parts }
    }

    /// A word: any eight letters of it in a row, in hexadecimal digits, or as a list of bytes.
    pub(crate) fn word(what: &'static str, word: &str) -> Secret {
        let small = word.to_lowercase();
        let letters: Vec<char> = small.chars().collect();
        let mut parts: Vec<String> = letters.windows(8).map(|some| some.iter().collect()).collect();
        parts.extend(lists(word.as_bytes()));
        parts.extend(
            word.as_bytes()
                .windows(8)
                .map(|some| some.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
        );
        Secret { what, parts }
    }
}

/// Each six bytes in a row as the numbers of a list.
fn lists(bytes: &[u8]) -> impl Iterator<Item = String> {
    let bytes: Vec<String> = bytes.iter().map(u8::to_string).collect();
    bytes.windows(6).map(|some| some.join(",")).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANTED: &str = "a/Wo\"rd?with\\all@of%it";

    fn finds(secret: &Secret, write: impl FnOnce(&mut Written)) -> bool {
        let mut written = Written::default();
        write(&mut written);
        assert!(!written.is_empty());
        !written.found(std::slice::from_ref(secret)).is_empty()
    }

    #[derive(Debug)]
    #[allow(dead_code, reason = "it is shown")]
    struct Shown<T>(T);

    #[test]
    fn a_word_is_found_in_every_form() {
        let secret = Secret::word("a word", PLANTED);
        let encoded: String = PLANTED.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let hex: String = PLANTED.bytes().map(|byte| format!("{byte:02x}")).collect();
        for text in [
            format!("x://me:{PLANTED}@h"),
            format!("x://me:{encoded}@h"),
            "x://me:a%2fWo%22rd%3fwith%5Call%40of%25it@h".to_owned(),
            format!("{:?}", format!("me:{PLANTED}@h")),
            format!("{:?}", format!("{PLANTED:?}")),
            PLANTED.to_uppercase(),
            PLANTED[4..14].to_owned(),
            hex,
        ] {
            assert!(finds(&secret, |written| written.record_text("text", &text)), "{text}");
            assert!(finds(&secret, |written| written.shown("value", &Shown(&text))), "{text}");
        }
        assert!(finds(&secret, |written| written.shown("bytes", &Shown(PLANTED.as_bytes()))));
        assert!(
            !finds(&secret, |written| written.record_text("text", &"a word of all with it, a/Wo, rd?with"))
        );
    }

    #[test]
    fn an_id_is_found_in_every_form() {
        let id = ClaimId::from_hex("00112233445566778899aabbccddeeff").unwrap();
        let secret = Secret::id("an id", id);
        for text in [
            "id=00112233445566778899aabbccddeeff",
            "7788-99AABBCCDDEE",
            "1122 3344 5566",
            "%3300112233445566",
        ] {
            assert!(finds(&secret, |written| written.record_text("text", &text)), "{text}");
        }
        assert!(finds(&secret, |written| written.shown("bytes", &Shown(id.as_bytes()))));
        assert!(!finds(&secret, |written| written.shown("id", &id)), "what it shows of itself is little");
    }

    #[test]
    fn it_is_found_in_the_source_of_an_error() {
        let inner = std::io::Error::other(format!("cannot read {PLANTED}"));
        let outer = std::io::Error::other(std::io::Error::other(inner));
        let secret = Secret::word("a word", PLANTED);
        assert!(finds(&secret, |written| written.failed("error", &outer)));
        let failed: leasehold::Result<()> = leasehold::Client::builder()
            .over(std::sync::Arc::new(leasehold::local::MemoryBackend::new()))
            .map(drop);
        assert!(!finds(&secret, |written| written.record_outcome("a client", &failed)));
    }

    #[test]
    #[should_panic(expected = "a word")]
    fn it_is_found_in_the_log() {
        logged::listen();
        tracing::debug!(target: "leasehold::here", text = "planted-0n-purp0se");
        Written::default().have_none_of("here", &[Secret::word("a word", "planted-0n-purp0se")]);
    }
}
