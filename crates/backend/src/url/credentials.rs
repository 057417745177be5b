//! The login, and where the password comes from.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_core::Failure;
use secrecy::{ExposeSecret, SecretString};

use crate::url::common::PASSWORD_FILE;
use crate::url::host::Host;
use crate::url::options::Options;
use crate::url::refusal::invalid;

/// A user, and the places where a password is looked for: the URL, else a file, else an environment variable.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The user's name, where one is given.
    pub user: Option<String>,
    given: Option<SecretString>,
    file: Option<PathBuf>,
    variable: &'static str,
    /// `true` once it was reported that others may read the file.
    is_warned: Arc<AtomicBool>,
}

impl Credentials {
    /// Creates the login from the parts of a URL. `variable` is the environment variable that is asked
    /// last.
    pub fn new(user: Option<String>, password: Option<SecretString>, variable: &'static str) -> Credentials {
        let user = user.filter(|user| !user.is_empty());
        Credentials { user, given: password, file: None, variable, is_warned: Arc::default() }
    }

    /// Creates the login of a URL, with its option `password-file`.
    ///
    /// # Errors
    /// `Invalid` if two passwords are given.
    pub fn of(
        user: Option<String>,
        password: Option<SecretString>,
        options: &Options,
        variable: &'static str,
    ) -> Result<Credentials, Failure> {
        let mut credentials = Credentials::new(user, password, variable);
        if let Some(path) = options.find(&PASSWORD_FILE)? {
            credentials.read_from(path);
        }
        credentials.check().map(|()| credentials)
    }

    /// Names a file that holds the password. A line break at its end is not
    /// part of it.
    pub fn read_from(&mut self, path: impl Into<PathBuf>) {
        self.file = Some(path.into());
    }

    /// Checks that at most one password is given.
    fn check(&self) -> Result<(), Failure> {
        if self.given.is_some() && self.file.is_some() {
            return Err(invalid("two passwords: one is in the URL, the other in password-file; keep one"));
        }
        Ok(())
    }

    /// Returns the present password. A file is read each time, so that it may be changed. A file that every
    /// user of the machine may read is used, with a warning: the secrets of containers are such files.
    ///
    /// # Errors
    /// `Invalid` if the file cannot be read.
    pub fn password(&self) -> Result<Option<SecretString>, Failure> {
        if self.given.is_some() {
            return Ok(self.given.clone());
        }
        let Some(path) = &self.file else {
            let from_environment = std::env::var(self.variable).ok().filter(|text| !text.is_empty());
            return Ok(from_environment.map(SecretString::from));
        };
        let text = read_file(path, "password-file")?;
        if is_open_to_all(path) && !self.is_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(path = %path.display(), "every user of this machine may read the password file: chmod 600");
        }
        let text = String::from_utf8(text)
            .map_err(|_| invalid(format!("the password file {} is not UTF-8 text", path.display())))?;
        Ok(Some(SecretString::from(text.trim_end_matches(['\r', '\n']))))
    }

    /// Returns `true` if a password is found now, or cannot be read.
    pub fn may_have_password(&self) -> bool {
        !matches!(self.password(), Ok(None))
    }

    /// Returns `true` if the URL itself, or a file that it names, has a password.
    pub fn names_password(&self) -> bool {
        self.given.is_some() || self.file.is_some()
    }

    /// Returns how it is shown before the hosts of a URL: `user@`, `user:***@`, or nothing.
    pub fn shown(&self) -> String {
        match (&self.user, &self.given) {
            (None, None) => String::new(),
            (user, None) => format!("{}@", user.as_deref().unwrap_or_default()),
            (user, Some(_)) => format!("{}:***@", user.as_deref().unwrap_or_default()),
        }
    }
}

/// Returns `true` if a password crosses a network on the way to these hosts, to which connections have no TLS.
///
/// `has_password` is called only if one of the hosts is another machine: it may read a file.
pub fn is_exposed<'a>(
    hosts: impl IntoIterator<Item = &'a Host>,
    has_password: impl FnOnce() -> bool,
) -> bool {
    hosts.into_iter().any(|host| !host.is_loopback()) && has_password()
}

/// Logs that the password for a store [is exposed](is_exposed). `advice` says what to change of the URL.
pub fn warn_of_exposed_password(store: &impl Display, advice: &str) {
    tracing::warn!(%store, "the password crosses the network in the clear: {advice}");
}

/// Checks whether every user may read the file.
#[cfg(unix)]
fn is_open_to_all(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|file| file.mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn is_open_to_all(_: &Path) -> bool {
    false
}

/// Returns the secret's text, for the client that logs in with it.
pub fn reveal(password: &SecretString) -> &str {
    password.expose_secret()
}

/// Reads a file that the URL's `option` names.
pub(crate) fn read_file(path: &Path, option: &str) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        invalid(format!("{option}={} cannot be read: {error}", path.display())).because(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(user: Option<&str>, password: Option<&str>) -> Credentials {
        let password = password.map(SecretString::from);
        Credentials::new(user.map(str::to_owned), password, "LEASEHOLD_ADDRESS_TEST_UNSET")
    }

    #[test]
    fn a_password_is_read_but_never_shown() {
        let credentials = of(Some("me"), Some("hunter2"));
        assert_eq!(credentials.password().unwrap().as_ref().map(reveal), Some("hunter2"));
        assert!(!format!("{credentials:?} {}", credentials.shown()).contains("hunter2"));
        let shown = |user, password| of(user, password).shown();
        assert_eq!(shown(Some("me"), Some("p")), "me:***@");
        assert_eq!((shown(None, Some("p")), shown(Some("me"), None)), (":***@".to_owned(), "me@".to_owned()));
        assert_eq!(shown(None, None), "");
        assert!(of(Some(""), None).user.is_none());
    }

    #[test]
    fn password_is_exposed_on_the_way_to_another_machine() {
        let host = |name: &str| Host { name: name.to_owned(), port: 1 };
        let (here, there) = ([host("localhost"), host("127.0.0.1"), host("::1")], [host("::1"), host("db")]);
        assert!(is_exposed(&there, || true) && !is_exposed(&there, || false));
        for hosts in [&here[..], &[]] {
            assert!(!is_exposed(hosts, || unreachable!("nothing crosses a network")));
        }
    }

    #[test]
    fn password_that_cannot_be_read_may_exist() {
        assert!(of(Some("me"), Some("p")).may_have_password() && !of(Some("me"), None).may_have_password());
        let mut unreadable = of(Some("me"), None);
        unreadable.read_from("/leasehold/no/such/file");
        assert!(unreadable.may_have_password());
    }

    #[test]
    fn a_password_file_is_read_each_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let mut credentials = of(Some("me"), None);
        assert!(credentials.password().unwrap().is_none() && !credentials.names_password());
        credentials.read_from(&path);
        assert!(credentials.names_password());
        assert!(credentials.password().unwrap_err().detail().contains("password-file"));
        for password in ["first", "second"] {
            std::fs::write(&path, format!("{password}\n")).unwrap();
            assert_eq!(credentials.password().unwrap().as_ref().map(reveal), Some(password));
        }
        std::fs::write(&path, b"\xff").unwrap();
        assert!(credentials.password().unwrap_err().detail().contains("UTF-8"));
    }

    #[cfg(unix)]
    #[test]
    fn a_password_file_that_all_may_read_is_used_with_a_warning() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret").unwrap();
        for (mode, warned) in [(0o600, false), (0o640, false), (0o644, true), (0o444, true)] {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let mut credentials = of(Some("me"), None);
            credentials.read_from(file.path());
            assert!(credentials.password().unwrap().is_some());
            assert_eq!(credentials.is_warned.load(Ordering::Relaxed), warned, "{mode:o}");
        }
    }

    #[test]
    fn two_passwords_are_one_too_many() {
        let mut credentials = of(Some("me"), Some("p"));
        assert!(credentials.check().is_ok());
        credentials.read_from("/x");
        assert!(credentials.check().unwrap_err().detail().contains("two passwords"));
    }
}
