//! The URLs of one kind of store, declared: the parser, the errors and the documentation are made of it.

use leasehold_core::Failure;

use crate::url::common::COMMON;
use crate::url::option::{AnyOption, listed};
use crate::url::options::Options;
use crate::url::parts::Parts;
use crate::url::refusal::{invalid, redact};
use crate::url::typo::meant;

/// The URLs of one kind of store, and all their options.
pub struct StoreUrls {
    /// The name of the store.
    pub title: &'static str,
    /// The schemes.
    pub schemes: &'static [Scheme],
    /// The options, in the order of the documentation.
    pub options: &'static [&'static dyn AnyOption],
    /// Options of other stores, with what there is in their place.
    pub lacks: &'static [Lack],
    /// Checks a URL. Nothing is sent anywhere.
    pub check: fn(&str) -> Result<(), Failure>,
}

/// One scheme of URLs.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// The part before the colon.
    pub name: &'static str,
    /// The form of such a URL.
    pub form: &'static str,
    /// The store, and the way to it.
    pub meaning: &'static str,
    /// A URL without options.
    pub example: &'static str,
}

/// An option that a store does not have, though its user may expect it.
#[derive(Clone, Copy, Debug)]
pub struct Lack {
    /// The schemes; none where all of the store are meant.
    pub schemes: &'static [&'static str],
    /// The names of the options.
    pub options: &'static [&'static str],
    /// The reason, or what is written in their place.
    pub why: &'static str,
}

impl StoreUrls {
    /// Takes a URL with hosts apart, checks its options, and reads both. What is refused is said without
    /// anything that may be a part of a password.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead. Nothing was sent anywhere.
    pub fn read<C>(
        &self,
        url: &str,
        read: impl FnOnce(Parts, &Options) -> Result<C, Failure>,
    ) -> Result<C, Failure> {
        let read = || {
            let parts = Parts::split(url, &self.form())?;
            self.scheme(&parts.scheme)?;
            let options = self.options(&parts.scheme, parts.options.iter().cloned())?;
            read(parts, &options)
        };
        read().map_err(|failure| redact(url, failure))
    }

    /// Checks the options of a URL of this scheme.
    ///
    /// # Errors
    /// `Invalid` for an unknown scheme; for an option that is unknown, is written twice, has a value that is
    /// not allowed, or would do nothing.
    pub fn options(
        &self,
        scheme: &str,
        pairs: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Options, Failure> {
        let scheme = self.scheme(scheme)?;
        let mut options = Options { given: Vec::new() };
        for (name, value) in pairs {
            let known = self.options.iter().find(|option| option.name() == name && option.is_of(scheme.name));
            let option = known.ok_or_else(|| self.unknown(scheme, &name))?;
            if options.has(option.name()) {
                return Err(invalid(format!("{name} is written twice: keep one")));
            }
            option.check(&value)?;
            options.given.push((option.name(), value));
        }
        let mut given = self.options.iter().filter(|option| options.has(option.name()));
        given.try_for_each(|option| self.check_conditions(*option, &options))?;
        Ok(options)
    }

    /// Returns the options that URLs of a scheme have.
    pub fn options_of(&self, scheme: &str) -> impl Iterator<Item = &'static dyn AnyOption> {
        self.options.iter().copied().filter(move |option| option.is_of(scheme))
    }

    /// Returns how the URLs are written: an example of each scheme.
    pub fn form(&self) -> String {
        listed(self.schemes.iter().map(|scheme| scheme.example.to_owned()), "or")
    }

    fn scheme(&self, name: &str) -> Result<&Scheme, Failure> {
        let known = self.schemes.iter().find(|scheme| scheme.name == name);
        known.ok_or_else(|| invalid(format!("this is no URL of {}: write {}", self.title, self.form())))
    }

    /// Refuses an option that does nothing with the others: a user would believe that it did something.
    fn check_conditions(&self, option: &dyn AnyOption, options: &Options) -> Result<(), Failure> {
        for &(other, words) in option.conditions() {
            let Some(declared) = self.options.iter().find(|declared| declared.name() == other) else {
                continue;
            };
            let text = options.text(other).or(declared.default_value());
            let is_met = match (text, words) {
                (Some(_), []) => true,
                (Some(text), words) => declared.word(text).is_some_and(|word| words.contains(&word)),
                (None, _) => false,
            };
            if is_met {
                continue;
            }
            let name = option.name();
            let hint = option.hint();
            if words.is_empty() {
                return Err(invalid(format!(
                    "{name} and {other} belong together: add {other}={}, or take {name} away{hint}",
                    declared.example()
                )));
            }
            let needed = listed(words.iter().map(|word| format!("{other}={word}")), "and");
            let one = if words.len() == 1 { needed.as_str() } else { "one" };
            return Err(invalid(format!("{name} is for {needed}: add {one}, or take {name} away{hint}")));
        }
        Ok(())
    }

    fn unknown(&self, scheme: &Scheme, name: &str) -> Failure {
        let start = scheme.start();
        let is_of = |schemes: &[&str]| schemes.is_empty() || schemes.contains(&scheme.name);
        let lack = self.lacks.iter().find(|lack| is_of(lack.schemes) && lack.options.contains(&name));
        if let Some(Lack { why, .. }) = lack {
            return invalid(format!("{start} does not support {name}: {why}"));
        }
        if let Some(option) = self.options.iter().find(|option| option.name() == name) {
            let others = self.schemes.iter().filter(|other| option.is_of(other.name));
            let others = listed(others.map(|other| other.start().to_owned()), "or");
            return invalid(format!("{start} does not support {name}: it belongs to {others}"));
        }
        let names: Vec<&str> = self.options_of(scheme.name).map(AnyOption::name).collect();
        let known = if names.is_empty() {
            "there is none".to_owned()
        } else {
            format!("known are {}", names.join(", "))
        };
        if COMMON.contains(&name) {
            return invalid(format!("{start} does not support {name}, an option of other stores; {known}"));
        }
        let meant = meant(name, names).map(|name| format!("; did you mean {name}?")).unwrap_or_default();
        invalid(format!("{name:?} is not an option of {start}{meant}; {known}"))
    }

    /// Returns the documentation of the URLs and their options, in Markdown.
    pub fn markdown(&self) -> String {
        let mut text = "| URL | connection |\n|---|---|\n".to_owned();
        for Scheme { form, meaning, .. } in self.schemes {
            text += &format!("| `{form}` | {meaning} |\n");
        }
        if self.options.is_empty() {
            return text + "\nThere are no options.\n";
        }
        text += "\n";
        text.extend(self.options.iter().map(|option| item(*option)));
        text
    }
}

impl Scheme {
    /// Returns how its URLs begin.
    fn start(&self) -> &'static str {
        let colon = self.name.len() + 1;
        let end = if self.example[colon..].starts_with("//") { colon + 2 } else { colon };
        &self.example[..end]
    }
}

/// Returns the item of the list for one option. Its parts have lines of their own, because together they are too
/// wide for a table.
fn item(option: &dyn AnyOption) -> String {
    let meaning = option.meaning().replace("; ", ";\n  ");
    let mut text = format!("- **`{}`**: {meaning}.\n", option.name());
    for (other, words) in option.conditions() {
        text += &match words {
            [] => format!("  Together with `{other}`.\n"),
            words => {
                format!(
                    "  Only with {}.\n",
                    listed(words.iter().map(|word| format!("`{other}={word}`")), "or")
                )
            }
        };
    }
    if !option.schemes().is_empty() {
        let schemes = listed(option.schemes().iter().map(|scheme| format!("`{scheme}`")), "and");
        text += &format!("  Only for {schemes}.\n");
    }
    text += &format!("  Value: {}.\n", option.allowed("`", "`"));
    match (option.default_value(), option.default_note()) {
        (Some(value), "") => text += &format!("  Default: `{value}`.\n"),
        (Some(value), note) => text += &format!("  Default: `{value}`; {note}.\n"),
        (None, "") => {}
        (None, note) => text += &format!("  Default: {note}.\n"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::{CA, CERT, KEY, ORDER, TIMEOUT, UrlOption};

    static STORE: StoreUrls = StoreUrls {
        title: "X",
        schemes: &[
            Scheme { name: "x", form: "x://host", meaning: "TCP", example: "x://h" },
            Scheme { name: "xs", form: "xs://host", meaning: "TLS", example: "xs://h" },
        ],
        options: &[&TIMEOUT, &METHOD, &ORDERED, &SECURED, &CERT, &KEY],
        lacks: &[Lack { schemes: &["x"], options: &["tls"], why: "write xs://" }],
        check: |url| STORE.read(url, |_, _| Ok(())),
    };
    const METHOD: UrlOption<u8> =
        UrlOption::choice("method", &[("row", 1), ("file", 2)]).about("how").default("row");
    const ORDERED: UrlOption<leasehold_core::QueueOrder> = ORDER.only_with(&[("method", &["file"])]);
    const SECURED: UrlOption<std::path::PathBuf> = CA.schemes(&["xs"]);

    #[test]
    fn a_url_is_read_with_its_options_or_their_defaults() {
        let read =
            |url| STORE.read(url, |_, options| Ok((options.get(&TIMEOUT)?.as_secs(), options.get(&METHOD)?)));
        assert_eq!(read("x://h").unwrap(), (5, 1));
        assert_eq!(read("xs://h?method=FILE&order=fifo&timeout=7s&ca=/x").unwrap(), (7, 2));
    }

    #[test]
    fn what_is_refused_is_said_with_what_to_write() {
        for (url, text) in [
            ("y://h", "this is no URL of X: write x://h or xs://h"),
            (
                "x://h?tiemout=1s",
                "\"tiemout\" is not an option of x://; did you mean timeout?; known are timeout, method",
            ),
            ("x://h?color=red", "\"color\" is not an option of x://; known are"),
            ("x://h?timeout=1s&timeout=1s", "timeout is written twice: keep one"),
            ("x://h?timeout=soon", "timeout=soon: write a duration between 10ms and 5m, as in timeout=5s"),
            ("x://h?method=a%07b", "method=a\\u{7}b: write method=row or method=file"),
            ("x://h?order=fifo", "order is for method=file: add method=file, or take order away"),
            ("xs://h?cert=/x", "cert and key belong together: add key=/path/to/file, or take cert away"),
            ("x://h?ca=/x", "x:// does not support ca: it belongs to xs://"),
            ("x://h?tls=on", "x:// does not support tls: write xs://"),
            ("xs://h?tls=on", "\"tls\" is not an option of xs://"),
            ("x://h?prefix=a", "x:// does not support prefix, an option of other stores; known are"),
        ] {
            let failure = (STORE.check)(url).unwrap_err();
            assert!(failure.detail().starts_with(text), "{url}: {failure}");
        }
        let refusal = (STORE.check)("x://me:a?hunter2@h").unwrap_err();
        assert!(!refusal.detail().contains("hunter2"), "{refusal}");
    }

    #[test]
    fn the_documentation_has_a_row_for_each_option() {
        let page = STORE.markdown();
        assert!(
            page.starts_with(
                "| URL | connection |\n|---|---|\n| `x://host` | TCP |\n| `xs://host` | TLS |\n"
            )
        );
        for item in [
            "- **`method`**: how.\n  Value: `row` or `file`.\n  Default: `row`.\n",
            ".\n  Only with `method=file`.\n  Value: `fifo` or `unordered`.\n  Default: `fifo`.\n",
            ".\n  Only for `xs`.\n  Value: the path of a file.\n",
            ".\n  Together with `cert`.\n  Value: the path of a file.\n",
        ] {
            assert!(page.contains(item), "{page}");
        }
        assert_eq!(page.matches("\n- **`").count(), STORE.options.len());
    }
}
