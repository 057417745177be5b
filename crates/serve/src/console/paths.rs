//! The paths of the pages, with names of locks in them.
//!
//! Ground rules: a name is a value of the query, never a part of the path. It may have slashes, which some
//! proxies decode, and may be `..`, which every browser resolves, encoded or not.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters that RFC 3986 leaves as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Encodes a text as one value of a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// Returns the path of the page of a lock.
pub(super) fn lock(name: &str) -> String {
    format!("/lock?name={}", encoded(name))
}

/// Returns the path of an action on a lock.
pub(super) fn action(name: &str, action: &str) -> String {
    format!("/lock/{action}?name={}", encoded(name))
}

/// Returns the path if it is one of this server, for a link back.
pub(super) fn own(path: &str) -> Option<&str> {
    // `//host` and `/\host` name another server.
    let is_own = path.starts_with('/')
        && !path[1..].starts_with(['/', '\\'])
        && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    is_own.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_value() {
        assert_eq!(lock("orders/42"), "/lock?name=orders%2F42");
        assert_eq!(lock("a b?c#d%e&f=g+h"), "/lock?name=a%20b%3Fc%23d%25e%26f%3Dg%2Bh");
        assert_eq!(lock("<script>\"'"), "/lock?name=%3Cscript%3E%22%27");
        assert_eq!(lock("käse"), "/lock?name=k%C3%A4se");
        assert_eq!(action("..", "break"), "/lock/break?name=..");
    }

    #[test]
    fn link_back_never_leads_elsewhere() {
        assert_eq!(own("/lock?name=b"), Some("/lock?name=b"));
        for path in
            ["", "//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nb", "javascript:1"]
        {
            assert_eq!(own(path), None, "{path}");
        }
    }
}
