//! The forms in which values are shown as data, behind the feature `serde`.
//!
//! Ground rules: these are an interface, as the output of the command with `--json` is, which uses them. A
//! field or a name may be added; none is changed or removed. The id of a claim is never among them, because
//! the id is enough to end the claim: a claim has its public [`tag`](crate::ClaimId::tag). So what has claims
//! can be written, and not read.

use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::deadlock::{Deadlock, DeadlockedWait};
use crate::{
    ClaimInfo, Durability, Fence, FenceGrade, Finding, LockSupport, LossCause, Note, QueueOrder, Resource,
    ResourceSummary, Severity, Share, Snapshot, WaitMode,
};

/// A [`Fence`] is its text: it sorts as the fence does, and no reader of JSON rounds it.
impl Serialize for Fence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A [`Share`] is its text: `mutex`, `reader`, `writer`, or `2/3` for two of three permits.
impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let permits = || {
            let (weight, capacity) = text.split_once('/')?;
            Share::permits(weight.parse().ok()?, capacity.parse().ok()?).ok()
        };
        let share = match text.as_str() {
            "mutex" => Some(Share::MUTEX),
            "reader" => Some(Share::READER),
            "writer" => Some(Share::WRITER),
            _ => permits(),
        };
        share.ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &SHARES))
    }
}

const SHARES: &str = "mutex, reader, writer, or permits as 2/3";

/// A [`Resource`] is its name.
impl Serialize for Resource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Resource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Resource::new(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A [`Note`] is its text.
impl Serialize for Note {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Note {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Note::new(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Enums whose variants are names.
macro_rules! names {
    ($($kind:ident { $($variant:ident = $name:literal),* $(,)? })*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(match self {
                    $($kind::$variant => $name,)*
                })
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match String::deserialize(deserializer)?.as_str() {
                    $($name => Ok($kind::$variant),)*
                    other => Err(D::Error::unknown_variant(other, &[$($name),*])),
                }
            }
        }
    )*};
}

names! {
    Severity { Good = "good", Notice = "notice", Unknown = "unknown", Risk = "risk", Broken = "broken" }
    FenceGrade {
        None = "none",
        BestEffort = "best-effort",
        AcrossFailover = "across-failover",
        Strict = "strict",
    }
    Durability { Evictable = "evictable", LostOnFailover = "lost-on-failover", Strict = "strict" }
    QueueOrder { Unordered = "unordered", Fifo = "fifo" }
    WaitMode { Polls = "polls", Notifies = "notifies", Blocks = "blocks" }
    LockSupport {
        Exclusive = "exclusive",
        SharedExclusive = "shared-exclusive",
        Permits = "permits",
        Counted = "counted",
    }
    LossCause {
        Expired = "expired",
        Gone = "gone",
        SessionEnded = "session-ended",
        MaxHold = "max-hold",
        Closed = "closed",
        Forked = "forked",
        Transferred = "transferred",
        RenewalEnded = "renewal-ended",
    }
}

/// `name`, `state` (`free` or `held`), `fence`, `holders`, `waiting`.
impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = serializer.serialize_struct("Snapshot", 5)?;
        form.serialize_field("name", &self.resource)?;
        form.serialize_field("state", if self.holders.is_empty() { "free" } else { "held" })?;
        form.serialize_field("fence", &self.fence)?;
        form.serialize_field("holders", &self.holders)?;
        form.serialize_field("waiting", &self.waiting)?;
        form.end()
    }
}

/// `tag`, `share`, `weight`, `capacity`, `fence`, `since_unix_ms`, `remaining_ms`, `note`.
impl Serialize for ClaimInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let remaining = self.remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        let mut form = serializer.serialize_struct("ClaimInfo", 8)?;
        form.serialize_field("tag", &self.id.tag())?;
        form.serialize_field("share", &self.share)?;
        form.serialize_field("weight", &self.share.weight())?;
        form.serialize_field("capacity", &self.share.capacity())?;
        form.serialize_field("fence", &self.fence)?;
        form.serialize_field("since_unix_ms", &self.since_unix_ms)?;
        form.serialize_field("remaining_ms", &remaining)?;
        form.serialize_field("note", &self.note)?;
        form.end()
    }
}

/// `name`, and the numbers of `holders` and of claims that are `waiting`.
impl Serialize for ResourceSummary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = serializer.serialize_struct("ResourceSummary", 3)?;
        form.serialize_field("name", &self.resource)?;
        form.serialize_field("holders", &self.holders)?;
        form.serialize_field("waiting", &self.waiting)?;
        form.end()
    }
}

/// `topic`, `severity`, `found`, `meaning`, `advice`.
impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = serializer.serialize_struct("Finding", 5)?;
        form.serialize_field("topic", self.topic)?;
        form.serialize_field("severity", &self.severity)?;
        form.serialize_field("found", &self.found)?;
        form.serialize_field("meaning", &self.meaning)?;
        form.serialize_field("advice", &self.advice)?;
        form.end()
    }
}

/// `waits`.
impl Serialize for Deadlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = serializer.serialize_struct("Deadlock", 1)?;
        form.serialize_field("waits", &self.waits)?;
        form.end()
    }
}

/// `waits_for`, `share`, `weight`, `capacity`, `holds`, `note`.
impl Serialize for DeadlockedWait {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = serializer.serialize_struct("DeadlockedWait", 6)?;
        form.serialize_field("waits_for", &self.resource)?;
        form.serialize_field("share", &self.share)?;
        form.serialize_field("weight", &self.share.weight())?;
        form.serialize_field("capacity", &self.share.capacity())?;
        form.serialize_field("holds", &self.holds)?;
        form.serialize_field("note", &self.note)?;
        form.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClaimId, SnapshotVersion};
    use serde::de::DeserializeOwned;
    use std::fmt::Debug;
    use std::time::Duration;

    fn json(value: &impl Serialize) -> String {
        serde_json::to_string(value).unwrap()
    }

    /// Checks the form of a value, and that it reads back.
    fn reads_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, form: &str) {
        assert_eq!(json(&value), form);
        assert_eq!(serde_json::from_str::<T>(form).unwrap(), value);
    }

    #[test]
    fn forms_of_values_are_an_interface_and_read_back() {
        reads_back(Fence::new(0, 42, 0), r#""00000000000000000042""#);
        reads_back(Fence::new(3, 42, 1), r#""e00000000000000000003.00000000000000000042.0000000001""#);
        reads_back(Share::MUTEX, r#""mutex""#);
        reads_back(Share::READER, r#""reader""#);
        reads_back(Share::WRITER, r#""writer""#);
        reads_back(Share::permits(2, 3).unwrap(), r#""2/3""#);
        reads_back(Resource::new("orders/42").unwrap(), r#""orders/42""#);
        reads_back(Note::new("a \"note\"").unwrap(), r#""a \"note\"""#);
        for (severity, form) in [
            (Severity::Good, "good"),
            (Severity::Notice, "notice"),
            (Severity::Unknown, "unknown"),
            (Severity::Risk, "risk"),
            (Severity::Broken, "broken"),
        ] {
            reads_back(severity, &format!("\"{form}\""));
            assert_eq!(severity.word(), form);
        }
        reads_back(FenceGrade::None, r#""none""#);
        reads_back(FenceGrade::BestEffort, r#""best-effort""#);
        reads_back(FenceGrade::AcrossFailover, r#""across-failover""#);
        reads_back(FenceGrade::Strict, r#""strict""#);
        reads_back(Durability::Evictable, r#""evictable""#);
        reads_back(Durability::LostOnFailover, r#""lost-on-failover""#);
        reads_back(Durability::Strict, r#""strict""#);
        reads_back(QueueOrder::Unordered, r#""unordered""#);
        reads_back(QueueOrder::Fifo, r#""fifo""#);
        reads_back(WaitMode::Polls, r#""polls""#);
        reads_back(WaitMode::Notifies, r#""notifies""#);
        reads_back(WaitMode::Blocks, r#""blocks""#);
        reads_back(LockSupport::Exclusive, r#""exclusive""#);
        reads_back(LockSupport::SharedExclusive, r#""shared-exclusive""#);
        reads_back(LockSupport::Permits, r#""permits""#);
        reads_back(LockSupport::Counted, r#""counted""#);
        reads_back(LossCause::Expired, r#""expired""#);
        reads_back(LossCause::Gone, r#""gone""#);
        reads_back(LossCause::SessionEnded, r#""session-ended""#);
        reads_back(LossCause::MaxHold, r#""max-hold""#);
        reads_back(LossCause::Closed, r#""closed""#);
        reads_back(LossCause::Forked, r#""forked""#);
        reads_back(LossCause::Transferred, r#""transferred""#);
        reads_back(LossCause::RenewalEnded, r#""renewal-ended""#);
    }

    #[test]
    fn text_that_is_not_a_value_is_refused() {
        for text in [r#""42""#, "42", r#""e1""#] {
            assert!(serde_json::from_str::<Fence>(text).is_err(), "{text}");
        }
        for text in [r#""0/3""#, r#""4/3""#, r#""half""#, r#""/""#, "2"] {
            let error = serde_json::from_str::<Share>(text).unwrap_err().to_string();
            assert!(!error.is_empty(), "{text}");
        }
        let long = format!("\"{}\"", "x".repeat(2_000));
        assert!(serde_json::from_str::<Resource>(&long).is_err());
        assert!(serde_json::from_str::<Resource>("\"\"").is_err());
        assert!(serde_json::from_str::<Note>(&long).is_err());
        assert!(serde_json::from_str::<Severity>(r#""bad""#).is_err());
    }

    #[test]
    fn forms_of_what_is_displayed_are_an_interface() {
        let (job, id) = (Resource::new("job").unwrap(), ClaimId::from_bytes([7; 16]));
        let holder = ClaimInfo::new(id, Share::permits(2, 3).unwrap())
            .fence(Some(Fence::new(0, 42, 0)))
            .since_unix_ms(Some(1_000))
            .remaining(Some(Duration::from_millis(27_500)))
            .note(Note::new("host 7").unwrap());
        let tag = id.tag();
        let held = format!(
            r#"{{"tag":"{tag}","share":"2/3","weight":2,"capacity":3,"fence":"00000000000000000042","since_unix_ms":1000,"remaining_ms":27500,"note":"host 7"}}"#
        );
        assert_eq!(json(&holder), held);
        let waits = format!(
            r#"{{"tag":"{tag}","share":"reader","weight":1,"capacity":4294967295,"fence":null,"since_unix_ms":null,"remaining_ms":null,"note":""}}"#
        );
        let waiter = ClaimInfo::new(id, Share::READER);
        let free = Snapshot::new(job.clone(), SnapshotVersion::new("1"));
        assert_eq!(json(&free), r#"{"name":"job","state":"free","fence":null,"holders":[],"waiting":[]}"#);
        let taken = free.holders(vec![holder]).waiting(vec![waiter]).fence(Some(Fence::new(0, 42, 0)));
        let form = format!(
            r#"{{"name":"job","state":"held","fence":"00000000000000000042","holders":[{held}],"waiting":[{waits}]}}"#
        );
        assert_eq!(json(&taken), form);
        assert!(!form.contains(&id.to_hex()), "the secret stays inside");
        let summary = ResourceSummary::new(job.clone(), 1, 2);
        assert_eq!(json(&summary), r#"{"name":"job","holders":1,"waiting":2}"#);
        let finding = Finding::new("order", Severity::Good, "fifo").meaning("fair");
        assert_eq!(
            json(&finding),
            r#"{"topic":"order","severity":"good","found":"fifo","meaning":"fair","advice":""}"#
        );
        let wait = DeadlockedWait::new(id, "ann", job, Share::MUTEX).holds(vec![Resource::new("m").unwrap()]);
        assert_eq!(
            json(&Deadlock::new(vec![wait])),
            r#"{"waits":[{"waits_for":"job","share":"mutex","weight":1,"capacity":1,"holds":["m"],"note":"ann"}]}"#
        );
    }
}
