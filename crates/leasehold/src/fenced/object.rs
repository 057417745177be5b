//! An object in a store with conditional writes, protected by a fence.
//!
//! Pure: it knows no client of any store. It returns the object to put with its condition, and
//! reads the answers.
//!
//! The fence is the first line of the object itself, not metadata beside it: if an entity tag is made
//! from the content alone, as in S3, raising a fence in the metadata would leave the tag unchanged, and
//! with it the condition of every older holder true.

use leasehold_core::Fence;

use super::{NoFence, Stale, compare, required};

/// An object that only the newest holder may replace.
///
/// ```no_run
/// use leasehold::fenced::{FencedObject, ObjectState, ConditionalPut, ObjectTag};
/// # fn get() -> ObjectState { ObjectState::absent() }
/// # fn put(_: &ConditionalPut) -> Option<ObjectTag> { None }
/// # fn add_one(_: &[u8]) -> Vec<u8> { Vec::new() }
/// # fn example(guard: &leasehold::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// let object = loop {
///     // `get`: the body and its tag. `put`: the new tag, or `None` if the store answers 412.
///     let raise = FencedObject::open(guard.fence(), &get())?;
///     if let Some(tag) = put(&raise) {
///         break raise.done(tag);
///     }
/// };
/// let write = object.write(&add_one(object.content()))?;
/// let object = match put(&write) {
///     Some(tag) => write.done(tag),
///     None => return Err(object.refused(&get()).into()),
/// };
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// After it was opened with a fence, no write of an older holder is accepted: each of them names a
/// state of the object that is gone. A put of unknown outcome may be repeated; if its condition then
/// fails, open the object again and look.
///
/// # Does not promise
/// An object that is deleted forgets its fence, so an older holder can create it again: write an empty content
/// instead, and exclude such objects from rules that expire them.
///
/// Nothing is promised on a store that does not keep conditional writes, or whose entity tags are weak.
/// A reader without this type does not find the bare content: it follows a line with the fence, see
/// [`FencedObject::strip`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedObject {
    fence: Fence,
    tag: ObjectTag,
    content: Vec<u8>,
}

/// The state of an object in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectTag {
    /// The entity tag, quotes included, as in the header `ETag` of S3, Azure and most others.
    Entity(String),
    /// The generation in Google's store, 0 if the object does not exist.
    Generation(u64),
    /// No object, in a store of entity tags.
    Absent,
}

/// The answer of a store to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectState {
    tag: ObjectTag,
    body: Option<Vec<u8>>,
}

/// An object to put, with its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionalPut {
    fence: Fence,
    body: Vec<u8>,
    content: Vec<u8>,
    condition: (&'static str, String),
}

/// The reason why a fenced object was not opened or replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectRefusal {
    /// A newer holder was here.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// The lock has no fence to compare.
    #[error(transparent)]
    NoFence(#[from] NoFence),
    /// The object has no line with a fence.
    #[error(
        "the object does not begin with a fence: write one with FencedObject::unheld while no client uses it"
    )]
    Foreign,
    /// This tag cannot be used as a condition.
    #[error(
        "{0:?} is not a strong entity tag, so the store cannot compare it: use a store that has conditional writes"
    )]
    WeakTag(String),
    /// The state that was to be replaced is gone, although no newer holder was here.
    #[error("the object was changed by your own fence since it was read, or without any: open it again")]
    Changed,
}

impl FencedObject {
    /// Returns the first step of opening: an object to put so that every older holder is excluded. It
    /// leaves the content as it is.
    ///
    /// If the store answers that the condition does not hold (412), another client was quicker: read
    /// again and open again, a limited number of times.
    ///
    /// # Errors
    /// `Stale` if a newer fence was here; `NoFence`; `Foreign`; `WeakTag`.
    pub fn open(
        fence: impl Into<Option<Fence>>,
        state: &ObjectState,
    ) -> Result<ConditionalPut, ObjectRefusal> {
        let fence = required(fence)?;
        let content = match &state.body {
            None => &[][..],
            Some(body) => {
                let (seen, content) = split(body)?;
                compare(fence, seen)?;
                content
            }
        };
        ConditionalPut::of(fence, content, &state.tag)
    }

    /// Returns the content as it was when the object was opened or written; empty if nothing was written yet.
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Returns the object to put to replace the content. If the store answers that the condition does
    /// not hold, nothing was written: [`FencedObject::refused`] says why.
    ///
    /// # Errors
    /// `WeakTag`, if the store named one when it accepted the last put.
    pub fn write(&self, content: &[u8]) -> Result<ConditionalPut, ObjectRefusal> {
        ConditionalPut::of(self.fence, content, &self.tag)
    }

    /// Returns why a write was refused, from the present state of the object.
    pub fn refused(&self, state: &ObjectState) -> ObjectRefusal {
        match FencedObject::open(self.fence, state) {
            Err(refusal) => refusal,
            Ok(_) => ObjectRefusal::Changed,
        }
    }

    /// Returns the body of an object with this content that has not been held yet, for existing objects.
    pub fn unheld(content: &[u8]) -> Vec<u8> {
        framed(Fence::default(), content)
    }

    /// Returns the content of a body, for callers that only read and need not be the newest.
    ///
    /// # Errors
    /// `Foreign`.
    pub fn strip(body: &[u8]) -> Result<&[u8], ObjectRefusal> {
        split(body).map(|(_, content)| content)
    }
}

impl ObjectState {
    /// Describes an existing object, with its state and its body.
    pub fn at(tag: ObjectTag, body: impl Into<Vec<u8>>) -> ObjectState {
        ObjectState { tag, body: Some(body.into()) }
    }

    /// Describes a missing object, in a store of entity tags.
    pub fn absent() -> ObjectState {
        ObjectState { tag: ObjectTag::Absent, body: None }
    }

    /// Describes a missing object, in a store of generations.
    pub fn no_generation() -> ObjectState {
        ObjectState { tag: ObjectTag::Generation(0), body: None }
    }
}

impl ConditionalPut {
    fn of(fence: Fence, content: &[u8], tag: &ObjectTag) -> Result<ConditionalPut, ObjectRefusal> {
        let condition = match tag {
            ObjectTag::Entity(tag) if is_strong(tag) => (IF_MATCH, tag.clone()),
            ObjectTag::Entity(tag) => return Err(ObjectRefusal::WeakTag(tag.chars().take(SHOWN).collect())),
            ObjectTag::Generation(generation) => (IF_GENERATION, generation.to_string()),
            ObjectTag::Absent => (IF_NONE_MATCH, "*".to_owned()),
        };
        Ok(ConditionalPut { fence, body: framed(fence, content), content: content.to_vec(), condition })
    }

    /// Returns the body to put.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns the header that makes the write conditional: its name and its value.
    pub fn condition(&self) -> (&'static str, &str) {
        (self.condition.0, &self.condition.1)
    }

    /// Returns the object after the store has accepted it, in the state that the answer names.
    pub fn done(self, tag: ObjectTag) -> FencedObject {
        FencedObject { fence: self.fence, tag, content: self.content }
    }
}

/// The beginning of an object; the fence and the end of the line follow.
const BEGIN: &[u8] = b"leasehold-fence: ";
const IF_MATCH: &str = "If-Match";
const IF_NONE_MATCH: &str = "If-None-Match";
const IF_GENERATION: &str = "x-goog-if-generation-match";
/// The part of a bad tag that is shown, in characters.
const SHOWN: usize = 64;

fn framed(fence: Fence, content: &[u8]) -> Vec<u8> {
    [BEGIN, fence.to_string().as_bytes(), b"\n", content].concat()
}

fn split(body: &[u8]) -> Result<(Fence, &[u8]), ObjectRefusal> {
    let read = || {
        let rest = body.strip_prefix(BEGIN)?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let fence = str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        Some((fence, &rest[end + 1..]))
    };
    read().ok_or(ObjectRefusal::Foreign)
}

/// Returns `true` for a quoted text without anything that could end a header.
fn is_strong(tag: &str) -> bool {
    let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    inner.is_some_and(|inner| inner.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity(tag: &str) -> ObjectTag {
        ObjectTag::Entity(tag.to_owned())
    }

    #[test]
    fn each_store_gets_its_own_condition() {
        let fence = Fence::new(0, 34, 0);
        let condition = |state: ObjectState| {
            let put = FencedObject::open(fence, &state).unwrap();
            (put.condition().0, put.condition().1.to_owned())
        };
        assert_eq!(condition(ObjectState::absent()), ("If-None-Match", "*".to_owned()));
        assert_eq!(condition(ObjectState::no_generation()), ("x-goog-if-generation-match", "0".to_owned()));
        let body = FencedObject::unheld(b"x");
        assert_eq!(condition(ObjectState::at(entity("\"e1\""), &*body)), ("If-Match", "\"e1\"".to_owned()));
        let generation = ObjectState::at(ObjectTag::Generation(7), &*body);
        assert_eq!(condition(generation), ("x-goog-if-generation-match", "7".to_owned()));
        for weak in ["W/\"e1\"", "e1", "\"", "", "\"a\"\r\nX: \"b\""] {
            let refusal = FencedObject::open(fence, &ObjectState::at(entity(weak), &*body)).unwrap_err();
            assert!(matches!(refusal, ObjectRefusal::WeakTag(_)), "{weak:?}");
        }
    }

    #[test]
    fn the_content_stays_and_the_fence_rises() {
        let (old, new) = (Fence::new(0, 33, 0), Fence::new(0, 34, 0));
        let body = FencedObject::unheld(b"5");
        let raise = FencedObject::open(old, &ObjectState::at(entity("\"1\""), body)).unwrap();
        let after_old = raise.body().to_vec();
        let holder = raise.done(entity("\"2\""));
        assert_eq!(holder.content(), b"5");
        let raise = FencedObject::open(new, &ObjectState::at(entity("\"2\""), after_old.clone())).unwrap();
        assert_ne!(raise.body(), after_old, "a tag made from the content changes with the fence");
        assert_eq!(FencedObject::strip(raise.body()).unwrap(), b"5");
        let seen = ObjectState::at(entity("\"3\""), raise.body());
        assert_eq!(holder.refused(&seen), ObjectRefusal::Stale(Stale { yours: old, seen: new }));
        assert_eq!(FencedObject::open(None, &seen), Err(ObjectRefusal::NoFence(NoFence)));
        assert_eq!(
            FencedObject::open(new, &ObjectState::at(entity("\"3\""), *b"bare")),
            Err(ObjectRefusal::Foreign)
        );
    }

    #[test]
    fn a_write_names_the_state_that_the_last_one_left() {
        let opened = FencedObject::open(Fence::new(0, 1, 0), &ObjectState::absent()).unwrap();
        let object = opened.done(entity("\"a\""));
        assert_eq!(object.content(), b"");
        let write = object.write(b"6").unwrap();
        assert_eq!(write.condition(), ("If-Match", "\"a\""));
        assert_eq!(write.done(entity("\"b\"")).write(b"7").unwrap().condition(), ("If-Match", "\"b\""));
    }
}
