//! Parses the answers of a member's scripts.
//!
//! Nothing that comes over the wire is trusted: what does not parse is a failure, never a panic and
//! never a guess.

use std::time::Duration;

use leasehold_core::quorum::{Answer, Mark, MemberState, MemberView, Seen, Vote};
use leasehold_core::{ClaimId, Failure, Fence, Note};
use redis::Value;

use crate::protocol::reply::{not_understood, read};

/// Reads the state that the server remembers of itself.
pub(super) fn member_state(answer: Value) -> Result<MemberState, Failure> {
    parse_state(&texts(answer)?).ok_or_else(not_understood)
}

/// Reads the answer to the first round.
pub(super) fn answer(answer: Value) -> Result<Answer, Failure> {
    let texts = match answer {
        // What `ask_free.lua` returns.
        Value::BulkString(lines) => String::from_utf8_lossy(&lines).split('\n').map(str::to_owned).collect(),
        answer => texts(answer)?,
    };
    parse_answer(&texts).ok_or_else(not_understood)
}

/// Reads the state of a resource.
pub(super) fn member_view(answer: Value) -> Result<MemberView, Failure> {
    parse_view(&texts(answer)?).ok_or_else(not_understood)
}

/// Writes epoch and number as a member stores them.
pub(super) fn fence_text(fence: Fence) -> String {
    format!("{} {}", fence.epoch, fence.seq)
}

/// Reads the answer's texts. A note is text of its writer, and need not be UTF-8.
pub(super) fn texts(answer: Value) -> Result<Vec<String>, Failure> {
    let bytes: Vec<Vec<u8>> = read(answer)?;
    Ok(bytes.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
}

fn parse_state(texts: &[String]) -> Option<MemberState> {
    let [run, since, mark, us, ..] = texts else { return None };
    let mark = match mark.as_str() {
        "" => None,
        text => {
            let (epoch, run) = text.split_once(' ')?;
            Some(Mark { epoch: epoch.parse().ok()?, run: run.to_owned() })
        }
    };
    let unarmed_since = if since.is_empty() { None } else { Some(since.parse().ok()?) };
    Some(MemberState { run: run.clone(), mark, unarmed_since, unix_us: us.parse().ok()? })
}

fn parse_answer(texts: &[String]) -> Option<Answer> {
    let state = parse_state(texts)?;
    let vote = match texts.get(4..)? {
        [kind, last, fence] if kind == "yours" => {
            let fence = if fence.is_empty() { None } else { Some(parse_fence(fence)?) };
            Vote::Yours { last: parse_fence(last)?, fence }
        }
        [kind, granted, left, listeners] if kind == "theirs" => Vote::Theirs {
            granted: !granted.is_empty(),
            ends_in: Duration::from_millis(left.parse().ok()?),
            listeners: listeners.parse().ok()?,
        },
        _ => return None,
    };
    Some(Answer { state, vote })
}

fn parse_view(texts: &[String]) -> Option<MemberView> {
    let (last, holder) = texts.split_first()?;
    let holder = match holder {
        [] => None,
        [id, fence, since, note, left] => Some(Seen {
            id: ClaimId::from_hex(id)?,
            fence: if fence.is_empty() { None } else { Some(parse_fence(fence)?) },
            since_unix_ms: since.parse().ok(),
            ends_in: Duration::from_millis(left.parse().ok()?),
            note: Note::clipped(note),
        }),
        _ => return None,
    };
    Some(MemberView { last: parse_fence(last)?, holder })
}

fn parse_fence(text: &str) -> Option<Fence> {
    let (epoch, seq) = text.split_once(' ')?;
    Some(Fence::new(epoch.parse().ok()?, seq.parse().ok()?, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(text: &str) -> Vec<String> {
        text.split('|').map(str::to_owned).collect()
    }

    #[test]
    fn answers_of_the_first_round_are_read() {
        let answer = parse_answer(&split("ab||5 ab|1800000000000000|yours|5 3|")).unwrap();
        assert_eq!(answer.state.armed(), Some(5));
        assert_eq!(answer.vote, Vote::Yours { last: Fence::new(5, 3, 0), fence: None });
        let answer = parse_answer(&split("ab|7||1800000000000000|theirs|granted|20|4")).unwrap();
        assert_eq!((answer.state.mark, answer.state.unarmed_since), (None, Some(7)));
        let ends_in = Duration::from_millis(20);
        assert_eq!(answer.vote, Vote::Theirs { granted: true, ends_in, listeners: 4 });
        for bad in ["", "ab|7||1", "ab|x||1|yours|5 3|", "ab|7||1|yours|5|", "ab|7||1|theirs|granted|-2|4"] {
            assert_eq!(parse_answer(&split(bad)), None, "{bad}");
        }
    }

    #[test]
    fn answer_to_a_client_that_returns_is_one_text_with_lines() {
        let text = |text: &str| answer(Value::BulkString(text.into()));
        let Answer { state, vote } = text("ab\n\n5 ab\n1800000000000000\nyours\n5 4\n5 4").unwrap();
        assert_eq!((state.armed(), state.unix_us), (Some(5), 1_800_000_000_000_000));
        let fence = Fence::new(5, 4, 0);
        assert_eq!(vote, Vote::Yours { last: fence, fence: Some(fence) });
        for bad in
            ["", "ab", "ab\n\n5 ab\n1800000000000000\nyours\n5 4", "ab||5 ab|1800000000000000|yours|5 4|5 4"]
        {
            assert!(text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lock_is_shown() {
        let text = format!("5 3|{}|5 3|1800|a note|900", "0a".repeat(16));
        let seen = parse_view(&split(&text)).unwrap().holder.unwrap();
        assert_eq!((seen.fence, seen.since_unix_ms), (Some(Fence::new(5, 3, 0)), Some(1800)));
        assert_eq!(parse_view(&split("0 0")).unwrap().holder, None);
    }

    proptest! {
        #[test]
        fn nothing_that_is_answered_panics(texts in proptest::collection::vec(".{0,20}", 0..10)) {
            let read = (parse_state(&texts), parse_answer(&texts), parse_view(&texts));
            prop_assert!(texts.len() >= 4 || read.0.is_none());
        }
    }
}
