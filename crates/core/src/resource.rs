//! The name of what is protected, and how a backend writes it down.

use std::fmt;
use std::sync::Arc;

/// The name of what is protected: 1 to 512 bytes of UTF-8 without control characters.
///
/// Names are compared byte by byte, so `Job` and `job` are two resources. Exceptions are names that a database
/// compares for another library: in ShedLock's table on MySQL and MariaDB, and with `dialect=tooz` on MySQL. Control
/// characters are refused because names reach terminals, logs and line protocols.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(Arc<str>);

impl Resource {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Takes `name` as the name of a resource.
    ///
    /// # Errors
    /// [`InvalidResource`] where it is empty, too long or has control characters; nothing was sent anywhere.
    pub fn new(name: &str) -> Result<Resource, InvalidResource> {
        if name.is_empty() {
            return Err(InvalidResource::Empty);
        }
        if name.len() > Resource::MAX_BYTES {
            return Err(InvalidResource::TooLong { bytes: name.len() });
        }
        if let Some((at, _)) = name.char_indices().find(|(_, c)| c.is_control()) {
            return Err(InvalidResource::Control { at });
        }
        Ok(Resource(name.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name in an alphabet and a length that a store can carry: never refused, injective while
    /// it fits.
    ///
    /// Bytes for which `plain` returns `true` are kept as they are, all others become `%XX`; `%` and `~`
    /// are always written as `%XX`. A result longer than `max` bytes is cut to its first 24 bytes at most,
    /// followed by `~` and 32 hexadecimal digits of BLAKE3 over the whole name. A backend that stores a
    /// hashed form (see [`Resource::is_hashed`]) must keep the full name beside it and compare, so that a
    /// collision is an error and never a silent exclusion of two resources.
    ///
    /// `max` is at least 40.
    pub fn escaped(&self, plain: fn(u8) -> bool, max: usize) -> String {
        debug_assert!(max >= Resource::MIN_ESCAPED, "no room for a hashed name in {max} bytes");
        let is_kept =
            |byte| plain(byte) && byte.is_ascii_graphic() && byte != b'%' && byte != Resource::HASH_MARK;
        // Mostly all of it is kept.
        if self.0.len() <= max && self.0.bytes().all(is_kept) {
            return self.as_str().to_owned();
        }
        let mut escaped = String::with_capacity(self.0.len());
        let mut head = 0;
        for byte in self.0.bytes() {
            if is_kept(byte) {
                escaped.push(char::from(byte));
            } else {
                // Digit by digit, as this is done for every request: formatting makes a string for each byte.
                let digits = [byte >> 4, byte & 15].map(|digit| char::from(HEX_DIGITS[usize::from(digit)]));
                escaped.extend(['%', digits[0], digits[1]]);
            }
            if escaped.len() <= Resource::HEAD_BYTES.min(max.saturating_sub(Resource::DIGEST_BYTES + 1)) {
                head = escaped.len();
            }
        }
        if escaped.len() <= max {
            return escaped;
        }
        let digest = blake3::hash(self.0.as_bytes()).to_hex();
        format!(
            "{}{}{}",
            &escaped[..head],
            char::from(Resource::HASH_MARK),
            &digest[..Resource::DIGEST_BYTES]
        )
    }

    /// Reads an [`escaped`](Resource::escaped) name back; `None` for a hashed or a foreign form.
    pub fn from_escaped(escaped: &str) -> Option<Resource> {
        let mut bytes = Vec::with_capacity(escaped.len());
        let mut rest = escaped.as_bytes();
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            match byte {
                Resource::HASH_MARK => return None,
                b'%' => {
                    let (pair, tail) = tail.split_at_checked(2)?;
                    if !pair.iter().all(u8::is_ascii_hexdigit) {
                        return None;
                    }
                    bytes.push(u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?);
                    rest = tail;
                }
                _ => bytes.push(byte),
            }
        }
        Resource::new(std::str::from_utf8(&bytes).ok()?).ok()
    }

    /// Returns `true` if an escaped form is a hash that does not carry the whole name.
    pub fn is_hashed(escaped: &str) -> bool {
        escaped.as_bytes().contains(&Resource::HASH_MARK)
    }

    const HEAD_BYTES: usize = 24;
    const DIGEST_BYTES: usize = 32;
    const HASH_MARK: u8 = b'~';
    const MIN_ESCAPED: usize = 40;
}

impl AsRef<str> for Resource {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that no resource can have, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidResource {
    /// No name at all.
    #[error("the name is empty: give the resource a name of 1 to 512 bytes")]
    Empty,
    /// Beyond [`Resource::MAX_BYTES`].
    #[error("the name has {bytes} bytes: at most 512 are allowed; hash or shorten it")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// A name with a control character.
    #[error("the name has a control character at byte {at}: use printable text")]
    Control {
        /// Its position, in bytes from the beginning.
        at: usize,
    },
}

const HEX_DIGITS: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file_safe(byte: u8) -> bool {
        byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
    }

    #[test]
    fn bad_names_are_refused_with_a_reason() {
        assert_eq!(Resource::new(""), Err(InvalidResource::Empty));
        assert_eq!(Resource::new(&"x".repeat(513)), Err(InvalidResource::TooLong { bytes: 513 }));
        assert_eq!(Resource::new("a\nb"), Err(InvalidResource::Control { at: 1 }));
        assert_eq!(Resource::new("ab\0"), Err(InvalidResource::Control { at: 2 }));
        assert!(Resource::new(&"x".repeat(512)).is_ok());
    }

    #[test]
    fn names_that_are_not_file_names_are_escaped() {
        let escaped = |name| Resource::new(name).unwrap().escaped(file_safe, 200);
        assert_eq!(escaped("orders/42"), "orders%2F42");
        assert_eq!(escaped(".."), "%2E%2E");
        assert_eq!(escaped("a b~%"), "a%20b%7E%25");
    }

    #[test]
    fn a_long_name_keeps_its_head_and_a_hash() {
        let name = format!("{}/{}", "é".repeat(30), "x".repeat(300));
        let escaped = Resource::new(&name).unwrap().escaped(file_safe, 100);
        assert_eq!(escaped.len(), 24 + 1 + 32);
        assert!(escaped.starts_with("%C3%A9%C3%A9%C3%A9%C3%A9~"));
        assert!(Resource::is_hashed(&escaped));
        assert_eq!(Resource::from_escaped(&escaped), None);
        // The head ends where its last escaped character fits whole.
        let fits = Resource::new(&"x".repeat(300)).unwrap().escaped(file_safe, 100);
        assert_eq!(fits.len(), 24 + 1 + 32);
        let whole = "x".repeat(100);
        assert_eq!(Resource::new(&whole).unwrap().escaped(file_safe, 100), whole, "it just fits");
        let escaped = Resource::new(&whole.replacen("xxx", "/", 1)).unwrap().escaped(file_safe, 100);
        assert_eq!(escaped, whole.replacen("xxx", "%2F", 1), "it just fits");
        let short = Resource::new("orders/42").unwrap().escaped(file_safe, 100);
        assert!(!Resource::is_hashed(&short), "{short}");
        assert_eq!(Resource::from_escaped("a%2"), None);
        assert_eq!(Resource::from_escaped("a%+2"), None);
    }

    proptest! {
        #[test]
        fn escaped_name_that_fits_reads_back(name in "\\PC{1,60}") {
            let resource = Resource::new(&name).unwrap();
            let escaped = resource.escaped(file_safe, 2000);
            prop_assert!(escaped.bytes().all(|b| file_safe(b) || b == b'%'));
            prop_assert_eq!(Resource::from_escaped(&escaped), Some(resource));
        }

        #[test]
        fn different_names_never_share_a_stored_form(a in "[ab/~%.]{1,90}", b in "[ab/~%.]{1,90}") {
            let (left, right) = (Resource::new(&a).unwrap(), Resource::new(&b).unwrap());
            prop_assert_eq!(a == b, left.escaped(file_safe, 64) == right.escaped(file_safe, 64));
        }

        #[test]
        fn the_stored_form_never_passes_its_limit(name in "\\PC{1,120}", max in 40usize..300) {
            prop_assert!(Resource::new(&name).unwrap().escaped(file_safe, max).len() <= max);
        }

        #[test]
        fn no_stored_form_panics(text in ".{0,40}") {
            if let Some(resource) = Resource::from_escaped(&text) {
                prop_assert!(!resource.as_str().is_empty());
            }
        }
    }
}
