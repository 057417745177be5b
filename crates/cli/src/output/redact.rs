//! Masks passwords in what is shown.

use std::ffi::OsString;

/// Masks what may be a password in a text that may hold URLs. Rather too much than too little: it does
/// not ask whether a URL is well formed, because the password of a malformed one is a password all the
/// same.
pub(crate) fn redacted(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        clean.push_str(before);
        // A quote ends the URL, unless it is part of the password: an `@` follows then.
        let word = &after[..after.find(char::is_whitespace).unwrap_or(after.len())];
        let address = word.rfind('@').unwrap_or(0);
        let end = word[address..]
            .find(['\'', '"', '`', '«', '»', '<', '>'])
            .map_or(word.len(), |end| address + end);
        let (url, tail) = after.split_at(end);
        clean.push_str(&masked(url));
        rest = tail;
    }
    clean.push_str(rest);
    clean
}

/// Masks what may be a password in a text that repeats arguments of the command line. It is known where they end, so
/// their passwords may have any characters.
pub(crate) fn redacted_with(text: &str, arguments: &[OsString]) -> String {
    let arguments = arguments.iter().map(|argument| argument.to_string_lossy());
    // An error repeats the value of an option without its name.
    let values = arguments.map(|argument| match argument.split_once('=') {
        Some((option, value)) if option.starts_with('-') => value.to_owned(),
        _ => argument.into_owned(),
    });
    let urls = values.filter(|value| redacted_url(value) != *value);
    redacted(&urls.fold(text.to_owned(), |text, url| text.replace(&url, &redacted_url(&url))))
}

/// Masks the password of a text that is one URL. It may have any characters.
pub(crate) fn redacted_url(url: &str) -> String {
    match url.find("://") {
        Some(at) => {
            let (scheme, rest) = url.split_at(at + "://".len());
            format!("{scheme}{}", masked(rest))
        }
        None => url.to_owned(),
    }
}

/// Masks the password of a lock's name, in case it is a URL in the wrong place. Only a login before the host is one:
/// two names must not look alike because both have a port and a later `@`.
pub(crate) fn redacted_name(name: &str) -> String {
    let host = name.find("://").map_or(name.len(), |at| at + "://".len());
    let address = &name[host..];
    let login = &address[..address.find(['/', '?', '#']).unwrap_or(address.len())];
    match (login.find(':'), login.rfind('@')) {
        (Some(colon), Some(at)) if colon < at => {
            format!("{}:***{}", &name[..host + colon], &name[host + at..])
        }
        _ => name.to_owned(),
    }
}

/// Masks one URL, given from behind its `://`.
fn masked(url: &str) -> String {
    let url = match (url.find(':'), url.rfind('@')) {
        (Some(colon), Some(at)) if colon < at => format!("{}:***{}", &url[..colon], &url[at..]),
        _ => url.to_owned(),
    };
    let Some((head, query)) = url.split_once('?') else { return url };
    let options: Vec<String> = query
        .split('&')
        .map(|option| match option.split_once('=') {
            Some((key, _)) if is_secret(key) => format!("{key}=***"),
            _ => option.to_owned(),
        })
        .collect();
    format!("{head}?{}", options.join("&"))
}

/// Returns `true` if the value of this option of a URL is a password.
pub(crate) fn is_secret(option: &str) -> bool {
    // The library reads encoded names, too.
    let Some((option, _)) = url::form_urlencoded::parse(option.as_bytes()).next() else { return false };
    ["pass", "password", "pwd", "secret", "token"].iter().any(|secret| option.eq_ignore_ascii_case(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown_however_the_url_is_written() {
        for (text, clean) in [
            ("redis://h:6379/0", "redis://h:6379/0"),
            ("redis://me@h", "redis://me@h"),
            ("redis://me:hunter2@h/0?wait=poll", "redis://me:***@h/0?wait=poll"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("redis://me:hun/ter2@h", "redis://me:***@h"),
            ("redis://me:hun@ter2@h", "redis://me:***@h"),
            ("redis+unix:///s?pass=hunter2&db=1", "redis+unix:///s?pass=***&db=1"),
            ("redis+unix:///s?p%61ss=hunter2", "redis+unix:///s?p%61ss=***"),
            ("redis://h?password-file=/p", "redis://h?password-file=/p"),
            (
                "error: 'redis://a:hunter2@h' is bad, 'x://b:hunter2@i' too",
                "error: 'redis://a:***@h' is bad, 'x://b:***@i' too",
            ),
            ("redis://:p'w<x@127.0.0.1:1", "redis://:***@127.0.0.1:1"),
            ("nothing at all", "nothing at all"),
        ] {
            assert_eq!(redacted(text), clean);
        }
        for url in ["redis://:p'w<x@h/0", "redis://me:a b@h/0", "postgres://me:\"x@h/0"] {
            let clean = redacted_url(url);
            assert!(clean.ends_with(":***@h/0"), "{clean}");
        }
        assert_eq!(redacted_url("file:///a/b"), "file:///a/b");
    }

    #[test]
    fn names_that_are_no_logins_are_shown_as_they_are() {
        for name in ["oci://registry:5000/app@sha256:aa", "https://h:8443/a@main", "x://h?a:b@c", "a:b@c", ""]
        {
            assert_eq!(redacted_name(name), name);
        }
        assert_eq!(redacted_name("redis://u:secret@h:1/a@b"), "redis://u:***@h:1/a@b");
    }
}
