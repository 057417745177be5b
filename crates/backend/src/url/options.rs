//! The options of one URL.

use leasehold_core::Failure;

use crate::url::option::UrlOption;
use crate::url::refusal::invalid;

/// The options of one URL, checked against those of its store.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) given: Vec<(&'static str, String)>,
}

impl Options {
    /// Returns the value of an option, or its default.
    ///
    /// # Errors
    /// `Invalid` if the value is not allowed, or is missing and has no default.
    pub fn get<T>(&self, option: &UrlOption<T>) -> Result<T, Failure> {
        let text = self.text(option.name).or(option.default);
        let missing = || invalid(format!("{0} is missing: add {0}={1}", option.name, option.example_value()));
        option.value(text.ok_or_else(missing)?)
    }

    /// Returns the value of an option where it is given.
    ///
    /// # Errors
    /// `Invalid` if the value is not allowed.
    pub fn find<T>(&self, option: &UrlOption<T>) -> Result<Option<T>, Failure> {
        self.text(option.name).map(|text| option.value(text)).transpose()
    }

    /// Returns `true` if the option of this name is given.
    pub fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// Returns what is written for the option of this name.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(given, _)| *given == name).map(|(_, text)| text.as_str())
    }
}
