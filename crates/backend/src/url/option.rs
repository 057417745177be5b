//! The declaration of one option of a URL.

use std::path::{PathBuf, absolute};
use std::str::FromStr;
use std::time::Duration;

use leasehold_core::Failure;

use crate::url::refusal::invalid;
use crate::url::shape::Shape;

/// One option of a URL: its name, its values, its default, and what it means. The parser, the errors and the
/// documentation are made of it.
///
/// ```
/// use leasehold_backend::url::UrlOption;
/// #[derive(Clone, Copy)]
/// enum First { Random, Given }
/// const FIRST: UrlOption<First> =
///     UrlOption::choice("servers", &[("random", First::Random), ("given", First::Given)])
///         .about("which server a client asks first")
///         .default("random");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct UrlOption<T: 'static> {
    pub(crate) name: &'static str,
    shape: Shape,
    read: fn(&UrlOption<T>, &str) -> Option<T>,
    words: &'static [(&'static str, T)],
    also: &'static [(&'static str, &'static str)],
    about: &'static str,
    pub(crate) default: Option<&'static str>,
    default_note: &'static str,
    example: Option<&'static str>,
    hint: &'static str,
    schemes: &'static [&'static str],
    only_with: &'static [Requirement],
}

/// Another option, and those of its words with which an option has a meaning; no words where it only has to
/// be given.
pub type Requirement = (&'static str, &'static [&'static str]);

/// The common parts of all options, of any type of value.
pub trait AnyOption: Sync {
    /// Returns its name.
    fn name(&self) -> &'static str;

    /// Checks a value.
    ///
    /// # Errors
    /// `Invalid`, with what was found, what is allowed, and an example.
    fn check(&self, value: &str) -> Result<(), Failure>;

    /// Returns the word of a choice that a value means.
    fn word(&self, value: &str) -> Option<&'static str>;

    /// Returns what is allowed: the words of a choice, each between the two texts, or a description.
    fn allowed(&self, before: &str, after: &str) -> String;

    /// Returns the value that is meant where none is given.
    fn default_value(&self) -> Option<&'static str>;

    /// Returns what the documentation says about a default that depends on other things.
    fn default_note(&self) -> &'static str;

    /// Returns a value that is allowed.
    fn example(&self) -> &'static str;

    /// Returns what it means, in a sentence.
    fn meaning(&self) -> &'static str;

    /// Returns the schemes that have it; none where all do.
    fn schemes(&self) -> &'static [&'static str];

    /// Returns what errors add, behind a semicolon.
    fn hint(&self) -> String;

    /// Returns the other options without which it has no meaning.
    fn conditions(&self) -> &'static [Requirement];

    /// Returns `true` if URLs of this scheme have it.
    fn is_of(&self, scheme: &str) -> bool {
        self.schemes().is_empty() || self.schemes().contains(&scheme)
    }
}

impl<T: Copy> UrlOption<T> {
    /// Declares a choice between words. Letters of any case are taken, and `_` for `-`.
    pub const fn choice(name: &'static str, words: &'static [(&'static str, T)]) -> UrlOption<T> {
        UrlOption { words, ..UrlOption::of(name, Shape::Words, read_word) }
    }

    /// Adds other words for words of the choice, which are not in the documentation.
    #[must_use]
    pub const fn also(self, also: &'static [(&'static str, &'static str)]) -> UrlOption<T> {
        UrlOption { also, ..self }
    }
}

impl UrlOption<Duration> {
    /// Declares a duration in these bounds.
    pub const fn duration(name: &'static str, min: Duration, max: Duration) -> UrlOption<Duration> {
        UrlOption::of(name, Shape::Duration { min, max }, |_, text| humantime::parse_duration(text).ok())
    }
}

impl<T: FromStr> UrlOption<T> {
    /// Declares a whole number in these bounds.
    pub const fn number(name: &'static str, min: u32, max: u32) -> UrlOption<T> {
        UrlOption::of(name, Shape::Number { min, max }, |_, text| text.parse().ok())
    }
}

impl UrlOption<String> {
    /// Declares a text of 1 to `max` of ASCII letters, digits and `others`.
    pub const fn plain(name: &'static str, max: usize, others: &'static str) -> UrlOption<String> {
        UrlOption::of(name, Shape::Plain { min: 1, max, others }, |_, text| Some(text.to_owned()))
    }

    /// Declares a text as [`UrlOption::plain`] does, which may be empty.
    pub const fn plain_or_empty(name: &'static str, max: usize, others: &'static str) -> UrlOption<String> {
        UrlOption::of(name, Shape::Plain { min: 0, max, others }, |_, text| Some(text.to_owned()))
    }

    /// Declares a name in SQL: plain characters only, so that quoting it is all that there is to do before it
    /// is written into statements.
    pub const fn sql_name(name: &'static str, max: usize) -> UrlOption<String> {
        UrlOption::of(name, Shape::SqlName { max }, |_, text| Some(text.to_owned()))
    }

    /// Declares a text of up to `max` bytes without control characters.
    pub const fn text(name: &'static str, max: usize) -> UrlOption<String> {
        UrlOption::of(name, Shape::Text { max }, |_, text| Some(text.to_owned()))
    }
}

impl UrlOption<PathBuf> {
    /// Declares the path of a file. A relative one is of the folder that the process is in when the URL is read: the
    /// file is read again for later connections, when a daemon may be in another folder.
    pub const fn file(name: &'static str) -> UrlOption<PathBuf> {
        let read = |_: &UrlOption<PathBuf>, text: &str| Some(absolute(text).unwrap_or_else(|_| text.into()));
        UrlOption::of(name, Shape::File, read).example("/path/to/file")
    }

    /// Declares a path from the root.
    pub const fn rooted(name: &'static str) -> UrlOption<PathBuf> {
        UrlOption::of(name, Shape::Rooted, |_, text| Some(PathBuf::from(text)))
    }
}

impl<T> UrlOption<T> {
    const fn of(name: &'static str, shape: Shape, read: fn(&Self, &str) -> Option<T>) -> UrlOption<T> {
        UrlOption {
            name,
            shape,
            read,
            words: &[],
            also: &[],
            about: "",
            default: None,
            default_note: "",
            example: None,
            hint: "",
            schemes: &[],
            only_with: &[],
        }
    }

    /// Sets what it means, in a sentence.
    #[must_use]
    pub const fn about(self, about: &'static str) -> UrlOption<T> {
        UrlOption { about, ..self }
    }

    /// Sets the value that is meant where none is given.
    #[must_use]
    pub const fn default(self, default: &'static str) -> UrlOption<T> {
        UrlOption { default: Some(default), ..self }
    }

    /// Sets what the documentation says about a default that depends on other things.
    #[must_use]
    pub const fn default_note(self, default_note: &'static str) -> UrlOption<T> {
        UrlOption { default_note, ..self }
    }

    /// Sets the value of the example, which is the default or the first word otherwise.
    #[must_use]
    pub const fn example(self, example: &'static str) -> UrlOption<T> {
        UrlOption { example: Some(example), ..self }
    }

    /// Sets what an error adds about values that are not allowed, or about what it is for.
    #[must_use]
    pub const fn hint(self, hint: &'static str) -> UrlOption<T> {
        UrlOption { hint, ..self }
    }

    /// Sets the schemes that have it, where not all of the store do.
    #[must_use]
    pub const fn schemes(self, schemes: &'static [&'static str]) -> UrlOption<T> {
        UrlOption { schemes, ..self }
    }

    /// Sets the other options without which it would do nothing, so that it is refused.
    #[must_use]
    pub const fn only_with(self, only_with: &'static [Requirement]) -> UrlOption<T> {
        UrlOption { only_with, ..self }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// `Invalid`, with what was found, what is allowed, and an example.
    pub(crate) fn value(&self, text: &str) -> Result<T, Failure> {
        let value =
            Some(text).filter(|text| self.shape.admits(text)).and_then(|text| (self.read)(self, text));
        value.ok_or_else(|| self.refusal(text))
    }

    fn refusal(&self, text: &str) -> Failure {
        let name = self.name;
        let found: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
        let allowed = match self.words {
            [] => format!("{}, as in {name}={}", self.shape, self.example_value()),
            words => listed(words.iter().map(|(word, _)| format!("{name}={word}")), "or"),
        };
        invalid(format!("{name}={found}: write {allowed}{}", self.hint_text()))
    }

    fn hint_text(&self) -> String {
        if self.hint.is_empty() { String::new() } else { format!("; {}", self.hint) }
    }

    pub(crate) fn example_value(&self) -> &'static str {
        let word = self.words.first().map(|(word, _)| *word);
        self.example.or(self.default).or(word).unwrap_or_default()
    }
}

impl<T: Sync> AnyOption for UrlOption<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check(&self, value: &str) -> Result<(), Failure> {
        self.value(value).map(drop)
    }

    fn word(&self, value: &str) -> Option<&'static str> {
        find_word(self, value).map(|(word, _)| *word)
    }

    fn allowed(&self, before: &str, after: &str) -> String {
        match self.words {
            [] => self.shape.to_string(),
            words => listed(words.iter().map(|(word, _)| format!("{before}{word}{after}")), "or"),
        }
    }

    fn default_value(&self) -> Option<&'static str> {
        self.default
    }

    fn default_note(&self) -> &'static str {
        self.default_note
    }

    fn example(&self) -> &'static str {
        self.example_value()
    }

    fn meaning(&self) -> &'static str {
        self.about
    }

    fn schemes(&self) -> &'static [&'static str] {
        self.schemes
    }

    fn hint(&self) -> String {
        self.hint_text()
    }

    fn conditions(&self) -> &'static [Requirement] {
        self.only_with
    }
}

fn read_word<T: Copy>(option: &UrlOption<T>, text: &str) -> Option<T> {
    find_word(option, text).map(|(_, value)| *value)
}

fn find_word<T>(option: &UrlOption<T>, text: &str) -> Option<&'static (&'static str, T)> {
    let text = text.to_ascii_lowercase().replace('_', "-");
    let text = option.also.iter().find(|(other, _)| *other == text).map_or(text.as_str(), |(_, word)| word);
    option.words.iter().find(|(word, _)| *word == text)
}

/// Lists words: `a, b or c`.
pub(crate) fn listed(words: impl IntoIterator<Item = String>, last: &str) -> String {
    let mut words: Vec<String> = words.into_iter().collect();
    match (words.pop(), words.is_empty()) {
        (Some(word), false) => format!("{} {last} {word}", words.join(", ")),
        (word, _) => word.unwrap_or_default(),
    }
}

/// The characters of a value that an error repeats.
const SHOWN: usize = 64;
