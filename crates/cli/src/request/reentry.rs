//! A `run` inside a `run`: the inner one does not request a lock that the outer one holds.
//!
//! Ground rules: `LEASEHOLD_OWNER` only says which claims may be held; the store decides. A claim of the
//! variable that is not among the holders any longer is ignored, and the lock is then acquired like any
//! other. Tags are not secret, so the variable is none.

use std::time::Duration;

use leasehold::{Client, Fence, Owner, Resource, Share};

use crate::exit::{Exit, Problem};

/// The public tags of the claims that this process inherits, outermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tags(Vec<String>);

/// The claim of an outer `run`, or of a section, on the same lock.
#[derive(Clone, Debug)]
pub(crate) struct Outer {
    pub(crate) tag: String,
    pub(crate) fence: Option<Fence>,
    /// The time for which the store keeps it without a renewal; `None` if a session keeps it alive.
    pub(crate) remaining: Option<Duration>,
}

impl Tags {
    /// Returns the tags in the environment.
    pub(crate) fn inherited() -> Tags {
        Tags::read(&std::env::var(OWNER_VARIABLE).unwrap_or_default())
    }

    pub(crate) fn read(text: &str) -> Tags {
        // Anything other than a tag was not written by leasehold, and is not passed on.
        let tags = text.split(',').map(str::trim).filter(|text| is_tag(text));
        Tags(tags.map(str::to_owned).collect())
    }

    /// Returns these tags without some of them.
    pub(crate) fn without(mut self, over: &[String]) -> Tags {
        self.0.retain(|tag| !over.contains(tag));
        self
    }

    /// Returns these tags and more, as the variable holds them.
    pub(crate) fn with(&self, more: impl IntoIterator<Item = String>) -> String {
        let tags: Vec<_> = self.0.iter().cloned().chain(more).collect();
        tags.join(",")
    }

    /// Returns an owner of all these claims; `None` without one.
    pub(crate) fn owner(&self) -> Option<Owner> {
        // Only so many can be announced, and the inner ones are the last.
        (!self.0.is_empty()).then(|| Owner::inheriting(self.0.iter().rev()))
    }

    /// Finds the claim of an outer `run` on `name`.
    ///
    /// # Errors
    /// Refused, if the outer `run` holds a smaller share than is requested now: waiting for the rest would
    /// be waiting for itself. The store failed.
    pub(crate) async fn find(
        &self,
        locks: &Client,
        name: &Resource,
        wanted: Share,
    ) -> Result<Option<Outer>, Problem> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let snapshot = locks.inspect(name.as_str()).await?;
        let ours: Vec<_> =
            snapshot.holders.iter().filter(|holder| self.0.contains(&holder.id.tag())).collect();
        if let Some(holder) = ours.iter().find(|holder| holder.share.covers(wanted)) {
            let (tag, fence, remaining) = (holder.id.tag(), holder.fence, holder.remaining);
            return Ok(Some(Outer { tag, fence, remaining }));
        }
        match ours.first() {
            None => Ok(None),
            Some(holder) => Err(Problem::new(
                Exit::Refused,
                format!(
                    "an outer `leasehold run` holds {name} as {}, so asking for {wanted} would wait for itself; ask \
                     for the larger share there",
                    holder.share
                ),
            )),
        }
    }
}

/// Returns `true` if the text may be the tag of a claim.
pub(crate) fn is_tag(text: &str) -> bool {
    text.len() == TAG && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The variable that holds the tags.
pub(crate) const OWNER_VARIABLE: &str = "LEASEHOLD_OWNER";
/// The length of a tag.
pub(crate) const TAG: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_passed_on_and_nothing_else_is() {
        let (a, b) = ("a".repeat(32), "0123456789abcdef0123456789abcdef");
        let tags = Tags::read(&format!("{a}, {b},,x,{}", "g".repeat(32)));
        assert_eq!(tags, Tags(vec![a.clone(), b.to_owned()]));
        assert_eq!(tags.with(Some("c".to_owned())), format!("{a},{b},c"));
        assert_eq!(tags.without(std::slice::from_ref(&a)), Tags(vec![b.to_owned()]));
        assert_eq!(Tags::read("").with(Some("c".to_owned())), "c");
        // A run may hold thousands of locks.
        assert_eq!(Tags::read(&vec![b; 4000].join(",")).0.len(), 4000);
    }
}
