//! How a resource is written down in Redis: its keys and its channel.
//!
//! All keys of a resource carry the same hash tag, `{prefix:name}`, so that they live in one slot. The name inside the
//! tag is escaped: a raw `}` in a name would end the tag early and tear the keys apart.

use leasehold_core::Resource;

use crate::ears::Reach;

/// The longest escaped name that is written out; a longer one is hashed, and kept whole beside its fence.
pub(crate) const MAX_NAME: usize = 160;

/// The keys of one resource.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    tag: String,
    /// The whole name, where the tag carries only its hash; else empty.
    pub(crate) hashed_name: String,
}

impl Keys {
    /// The keys of `resource` under `prefix`.
    pub(crate) fn of(prefix: &str, resource: &Resource) -> Keys {
        let escaped = resource.escaped(plain, MAX_NAME);
        let hashed_name =
            if Resource::is_hashed(&escaped) { resource.as_str().to_owned() } else { String::new() };
        Keys { tag: format!("{{{prefix}:{escaped}}}"), hashed_name }
    }

    /// What is held.
    pub(crate) fn held(&self) -> String {
        self.key("held")
    }

    /// When those who wait are given up.
    pub(crate) fn places(&self) -> String {
        self.key("places")
    }

    /// What the claims say of themselves.
    pub(crate) fn claims(&self) -> String {
        self.key("claims")
    }

    /// Those who decide over who holds and who waits.
    pub(crate) fn line(&self) -> [String; 4] {
        [self.held(), self.key("line"), self.places(), self.claims()]
    }

    /// All of them.
    pub(crate) fn all(&self) -> [String; 5] {
        [self.held(), self.key("line"), self.places(), self.claims(), self.key("fence")]
    }

    /// Where releases are told. The scripts know by its end how far a channel reaches.
    pub(crate) fn channel(&self, reach: Reach) -> String {
        self.key(match reach {
            Reach::Everywhere => "wake",
            Reach::Slot => "swake",
        })
    }

    /// The key of one part.
    pub(crate) fn key(&self, part: &str) -> String {
        let mut key = String::with_capacity(self.tag.len() + 1 + part.len());
        key.push_str(&self.tag);
        key.push(':');
        key.push_str(part);
        key
    }
}

/// Bytes of a name that stand for themselves in a key.
pub(crate) fn plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str) -> String {
        Keys::of("lh", &Resource::new(name).unwrap()).tag
    }

    #[test]
    fn a_name_cannot_break_out_of_its_tag() {
        assert_eq!(tag("orders/42"), "{lh:orders/42}");
        assert_eq!(tag("}x"), "{lh:%7Dx}");
        assert_eq!(tag("{a} é"), "{lh:%7Ba%7D%20%C3%A9}");
    }

    #[test]
    fn a_long_name_is_hashed_and_kept() {
        let name = "ü".repeat(256);
        let keys = Keys::of("lh", &Resource::new(&name).unwrap());
        assert!(keys.held().len() < 200);
        assert_eq!(keys.hashed_name, name);
        assert_eq!(Keys::of("lh", &Resource::new("short").unwrap()).hashed_name, "");
    }

    #[test]
    fn all_keys_share_the_tag() {
        let keys = Keys::of("lh", &Resource::new("a").unwrap());
        assert_eq!(keys.channel(Reach::Everywhere), "{lh:a}:wake");
        assert_eq!(keys.channel(Reach::Slot), "{lh:a}:swake");
        assert!(keys.all().iter().chain(&keys.line()).all(|key| key.starts_with("{lh:a}:")));
    }
}
