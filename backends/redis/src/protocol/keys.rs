//! The form in which a resource is written down in Redis: its keys and its channel.
//!
//! All keys of a resource carry the same hash tag, `{prefix:name}`, so that they live in one slot. The
//! name inside the tag is escaped: a raw `}` in a name would end the tag early and tear the keys apart.

use leasehold_core::Resource;

use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::floor::floor_key;
use crate::protocol::slots::slot_of;

/// The longest escaped name that is written out; a longer one is hashed, and kept whole with its fence.
pub(crate) const MAX_NAME: usize = 160;

/// The keys of one resource.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    tag: String,
    /// The number of bytes of the tag's name that are the prefix.
    prefix: usize,
    /// The whole name, where the tag carries only its hash; else empty.
    pub(crate) hashed_name: String,
}

impl Keys {
    /// Returns the keys of `resource` under `prefix`.
    pub(crate) fn of(prefix: &str, resource: &Resource) -> Keys {
        let escaped = resource.escaped(plain, MAX_NAME);
        let hashed_name =
            if Resource::is_hashed(&escaped) { resource.as_str().to_owned() } else { String::new() };
        let mut tag = String::with_capacity(prefix.len() + escaped.len() + 3);
        for part in ["{", prefix, ":", &escaped, "}"] {
            tag.push_str(part);
        }
        Keys { tag, prefix: prefix.len(), hashed_name }
    }

    /// Returns the keys of the resource whose fence has this key, under `prefix`; `None` for the key of
    /// anything else.
    pub(crate) fn of_fence(prefix: &str, fence: &str) -> Option<Keys> {
        let tag = fence.strip_suffix(":fence")?;
        let stored = tag.strip_prefix('{')?.strip_suffix('}')?.strip_prefix(prefix)?.strip_prefix(':')?;
        let is_name = !stored.is_empty() && stored.len() <= MAX_NAME && stored.bytes().all(plain);
        is_name.then(|| Keys { tag: tag.to_owned(), prefix: prefix.len(), hashed_name: String::new() })
    }

    /// Returns the beginning of all keys of the resources whose names begin with `names`, except of those that are
    /// hashed.
    pub(crate) fn beginning(prefix: &str, names: &str) -> String {
        let names = Resource::new(names).map(|names| names.escaped(plain, MAX_NAME)).unwrap_or_default();
        format!("{{{prefix}:{names}")
    }

    /// Returns the key of what is held.
    pub(crate) fn held(&self) -> String {
        self.key("held")
    }

    /// Returns the key of the last fence.
    pub(crate) fn fence(&self) -> String {
        self.key("fence")
    }

    /// Returns the key of the times at which waiters expire.
    pub(crate) fn places(&self) -> String {
        self.key("places")
    }

    /// Returns the key of the notes and fences of the claims, unless the lock is a single value.
    pub(crate) fn claims(&self) -> String {
        self.key("claims")
    }

    /// Returns the keys of the queue, which decide which claims hold and which wait.
    pub(crate) fn queue_keys(&self) -> [String; 4] {
        [self.held(), self.key("queue"), self.places(), self.claims()]
    }

    /// Returns all of the keys.
    pub(crate) fn all(&self) -> [String; 5] {
        [self.held(), self.key("queue"), self.places(), self.claims(), self.key("fence")]
    }

    /// Returns all of the keys, and the floor of their slot.
    pub(crate) fn all_and_floor(&self) -> [String; 6] {
        let [held, queue, places, claims, fence] = self.all();
        [held, queue, places, claims, fence, self.floor()]
    }

    /// Returns the key of the highest fence that was removed from the slot of the resource.
    pub(crate) fn floor(&self) -> String {
        let prefix = self.tag.get(1..=self.prefix).unwrap_or_default();
        floor_key(prefix, slot_of(&self.tag))
    }

    /// Returns the channel on which releases are announced.
    pub(crate) fn channel(&self, scope: ChannelScope) -> String {
        self.key(scope.part())
    }

    /// Returns the key of one part.
    pub(crate) fn key(&self, part: &str) -> String {
        let mut key = String::with_capacity(self.tag.len() + 1 + part.len());
        key.push_str(&self.tag);
        key.push(':');
        key.push_str(part);
        key
    }
}

/// Returns `true` for the bytes of a name that appear unchanged in a key.
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
    fn the_keys_of_a_fence_are_those_of_its_resource() {
        for name in ["a", "orders/42", "}x é", &"ü".repeat(256)] {
            let keys = Keys::of("app", &Resource::new(name).unwrap());
            let [.., fence] = keys.all();
            let found = Keys::of_fence("app", &fence).unwrap();
            assert_eq!(found.all_and_floor(), keys.all_and_floor(), "{name}");
        }
        for other in ["{app:a}:held", "{ap:a}:fence", "{app:a:fence", "{app: @@@@}:fence", "{app:}:fence"] {
            assert!(Keys::of_fence("app", other).is_none(), "{other}");
        }
    }

    #[test]
    fn all_keys_share_the_tag() {
        let keys = Keys::of("lh", &Resource::new("a").unwrap());
        assert_eq!(keys.channel(ChannelScope::Everywhere), "{lh:a}:wake");
        assert_eq!(keys.channel(ChannelScope::Slot), "{lh:a}:swake");
        assert!(keys.all().iter().chain(&keys.queue_keys()).all(|key| key.starts_with("{lh:a}:")));
    }
}
