//! A URL of the form `scheme://user:password@host:port,host:port/path?option=value`, taken apart.

use leasehold_core::Failure;
use percent_encoding::percent_decode_str;
use secrecy::SecretString;

use crate::url::host::Host;
use crate::url::refusal::invalid;

/// The parts of a URL, decoded.
///
/// ```
/// use leasehold_backend::url::Parts;
/// let parts = Parts::split("etcd://jobs:secret@db1,db2:2479/a?timeout=3s", "etcd://host").unwrap();
/// assert_eq!((parts.scheme.as_str(), parts.path.as_str()), ("etcd", "a"));
/// assert_eq!(parts.hosts(2379).unwrap()[0].to_string(), "db1:2379");
/// assert_eq!(parts.options, [("timeout".to_owned(), "3s".to_owned())]);
/// ```
#[derive(Clone, Debug)]
pub struct Parts {
    /// The part before `://`.
    pub scheme: String,
    /// The user's name, which may be empty before a password.
    pub user: Option<String>,
    /// The password.
    pub password: Option<SecretString>,
    /// The part behind the first slash after the hosts.
    pub path: String,
    /// The options in their order; one name may come several times.
    pub options: Vec<(String, String)>,
    hosts: String,
    /// The form of such a URL, for error messages.
    form: String,
}

impl Parts {
    /// Takes a URL apart. `form` is how such a URL is written, and part of every complaint.
    ///
    /// # Errors
    /// `Invalid`, with no part of the URL in its text.
    pub fn split(url: &str, form: &str) -> Result<Parts, Failure> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| invalid(format!("this is no URL: write {form}")))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may hold a slash that was not encoded: the hosts begin behind the last `@`.
        let login_end = rest.rfind('@').map_or(0, |at| at + 1);
        let (login, rest) = rest.split_at(login_end);
        if rest.contains('#') || query.contains('#') {
            // The rest behind it would be lost elsewhere, even where it is the rest of a password and the host.
            return Err(invalid(
                "a # has no meaning in the URL of a store: write %23 where it is part of a name or password",
            ));
        }
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, password) = match login.strip_suffix('@') {
            None => (None, None),
            Some(login) => match login.split_once(':') {
                None => (Some(decoded(login, "user name")?), None),
                Some((user, password)) => (
                    Some(decoded(user, "user name")?),
                    Some(SecretString::from(decoded(password, "password")?)),
                ),
            },
        };
        let options = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Ok(Parts {
            scheme: scheme.to_owned(),
            user,
            password,
            path: decoded(path, "path")?,
            options,
            hosts: hosts.to_owned(),
            form: form.to_owned(),
        })
    }

    /// Returns the servers, where one that names no port has this one.
    ///
    /// # Errors
    /// `Invalid` where one cannot be read, or is missing between two commas.
    pub fn hosts(&self, port: u16) -> Result<Vec<Host>, Failure> {
        self.hosts.split(',').map(|text| Host::read(text, port, &self.form)).collect()
    }

    /// Returns `true` if no server is named at all.
    pub fn is_without_host(&self) -> bool {
        self.hosts.is_empty()
    }
}

fn decoded(text: &str, what: &str) -> Result<String, Failure> {
    let text = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| invalid(format!("the {what} is not UTF-8 once its %XX are decoded")))?;
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::reveal;

    #[test]
    fn a_url_is_taken_apart() {
        let parts = Parts::split("x://me:p%40ss@a,[::1]:70/some/path?k=v&k=w%26", "x://host").unwrap();
        assert_eq!(parts.user.as_deref(), Some("me"));
        assert_eq!(parts.password.as_ref().map(reveal), Some("p@ss"));
        assert_eq!(parts.path, "some/path");
        let options = [("k".to_owned(), "v".to_owned()), ("k".to_owned(), "w&".to_owned())];
        assert_eq!(parts.options, options);
        let hosts: Vec<String> = parts.hosts(9).unwrap().iter().map(Host::to_string).collect();
        assert_eq!(hosts, ["a:9", "[::1]:70"]);

        let parts = Parts::split("x://h", "x://host").unwrap();
        assert!(parts.user.is_none() && parts.password.is_none() && parts.options.is_empty());
        assert!(!parts.is_without_host() && Parts::split("x:///s", "").unwrap().is_without_host());
    }

    #[test]
    fn an_empty_password_is_a_password_and_a_user_alone_has_none() {
        assert!(Parts::split("x://me@h", "").unwrap().password.is_none());
        let parts = Parts::split("x://:pw@h", "").unwrap();
        assert_eq!((parts.user.as_deref(), parts.password.as_ref().map(reveal)), (Some(""), Some("pw")));
        assert_eq!(Parts::split("x://me:@h", "").unwrap().password.as_ref().map(reveal), Some(""));
    }

    #[test]
    fn a_hash_is_refused_outside_of_the_login() {
        for url in ["x://h#y", "x://h/p#y", "x://h?k=v#y"] {
            assert!(Parts::split(url, "").unwrap_err().to_string().contains("%23"), "{url}");
        }
        assert_eq!(Parts::split("x://me:a#b@h", "").unwrap().password.as_ref().map(reveal), Some("a#b"));
    }

    #[test]
    fn nothing_that_is_shown_holds_a_password() {
        let parts = Parts::split("x://me:hun/ter2@h/p", "").unwrap();
        assert_eq!((parts.password.as_ref().map(reveal), parts.path.as_str()), (Some("hun/ter2"), "p"));
        assert!(!format!("{parts:?}").contains("hun"));
        for bad in ["me:hunter2@h", "x://%ff:hunter2@h", "x://me:hunter2%ff@h"] {
            assert!(!Parts::split(bad, "x://host").unwrap_err().to_string().contains("hunter2"));
        }
        let unreadable = Parts::split("x://me:hunter2@h:99999", "x://host").unwrap().hosts(1).unwrap_err();
        assert!(!unreadable.to_string().contains("hunter2"));
    }
}
