//! Advice about a lock: a verdict, and steps in the order in which to try them.
//!
//! Ground rules: pure code. The harmless step comes first, and the one that can do damage last. What is not
//! known is not claimed.

use std::time::Duration;

use super::attention::Reason;
use super::words::{count, length};

/// The facts about a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) name: &'a str,
    pub(super) holders: usize,
    pub(super) waiting: usize,
    pub(super) reasons: &'a [Reason],
    /// The least time that a lease has left; `None` if sessions keep the holders.
    pub(super) remaining: Option<Duration>,
}

/// The first sentence of a page.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    /// The class of the notice: empty, `warn` or `bad`.
    pub(super) tone: &'static str,
    pub(super) title: String,
    pub(super) text: String,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) text: String,
    pub(super) action: Option<Action>,
}

/// An action that a person can take here, or with the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Revoke,
    Break,
    /// To look at the picture of the waits.
    Waits,
}

impl Action {
    /// Returns the command that does the same.
    pub(super) fn command(self, name: &str) -> String {
        let verb = match self {
            Action::Revoke => "revoke",
            Action::Break => "break",
            Action::Waits => return "leasehold ls --deadlocks".to_owned(),
        };
        format!("leasehold {verb} {}", quoted(name))
    }
}

/// Returns the text as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.:=@+".contains(c);
    if text.chars().all(is_plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    let quoted = format!("'{}'", text.replace('\'', "'\\''"));
    if text.starts_with('-') { format!("-- {quoted}") } else { quoted }
}

impl Facts<'_> {
    fn has(&self, reason: Reason) -> bool {
        self.reasons.contains(&reason)
    }

    /// Returns what a page says first.
    pub(super) fn verdict(&self) -> Verdict {
        let waiting = count(self.waiting, "claim waits", "claims wait");
        let left = self.remaining.map(length).unwrap_or_default();
        let (tone, title, text) = if self.has(Reason::Deadlocked) {
            (
                "bad",
                "Part of a deadlock",
                "Its holder and its waiter wait for each other, directly or around a circle. \
                None of them continues by itself."
                    .to_owned(),
            )
        } else if self.has(Reason::NotRenewed) {
            (
                "bad",
                "The holder does not renew its lease",
                format!(
                    "The holder is paused, cut off from the store, or \
                dead. Its lease ends by itself within {left}, and then the lock is free."
                ),
            )
        } else if self.holders == 0 && self.waiting > 0 {
            let text = format!(
                "{waiting}, and nothing holds the lock. A waiter is granted it within about two seconds, \
                also if dead waiters are ahead of it; a lock delay can make it longer."
            );
            (if self.has(Reason::NobodyHolds) { "warn" } else { "plain" }, "Free, but waited for", text)
        } else if self.holders == 0 {
            (
                "plain",
                "Free",
                "Nothing holds the lock, and nothing waits for it. There is nothing to do.".to_owned(),
            )
        } else if self.reasons.is_empty() && self.waiting > 0 {
            ("plain", "In use, with a queue that moves", format!("{waiting}, and not for long."))
        } else if self.reasons.is_empty() {
            ("plain", "In use", "The holder is alive, and nothing waits. There is nothing to do.".to_owned())
        } else {
            (
                "warn",
                "Held while others wait",
                format!(
                    "The holder is alive: it keeps its claim. {waiting}, so it \
                works for longer than they expect, or it hangs."
                ),
            )
        };
        Verdict { tone, title: title.to_owned(), text }
    }

    /// Returns what to do, the harmless first.
    pub(super) fn steps(&self) -> Vec<Step> {
        let step = |text: &str, action| Step { text: text.to_owned(), action };
        if self.holders == 0 {
            return Vec::new();
        }
        let mut steps = Vec::new();
        if self.has(Reason::Deadlocked) {
            steps.push(step("See who waits for whom.", Some(Action::Waits)));
        }
        if self.has(Reason::NotRenewed) {
            steps.push(step(
                "Wait: the lease ends by itself, which is the only safe way if the holder may be paused.",
                None,
            ));
        }
        let find = match self.remaining {
            Some(_) => "Find the holder: its note mostly names the host and the process. See what it does.",
            None => {
                "Find the holder: its note mostly names the host and the process. As soon as that process or \
                 its connection ends, the lock is free."
            }
        };
        steps.push(step(find, None));
        let ask =
            "Ask it to release the lock. Nothing is taken from it; a program that does not listen continues.";
        steps.push(step(ask, Some(Action::Revoke)));
        let by_force = "Take the lock away, if the holder hangs or is gone and you cannot wait. Until it \
                        notices, it and the next holder may both act.";
        steps.push(step(by_force, Some(Action::Break)));
        steps
    }

    /// Returns what a screen reader says when the lock has changed.
    pub(super) fn news(&self, first: Option<&str>) -> String {
        let held = match (self.holders, first) {
            (0, _) => "Free".to_owned(),
            (1, Some(who)) => format!("Held by {who}"),
            (many, _) => format!("Held by {}", count(many, "claim", "claims")),
        };
        format!("{held}, {}.", count(self.waiting, "waiter", "waiters"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts<'a>(holders: usize, waiting: usize, reasons: &'a [Reason]) -> Facts<'a> {
        Facts { name: "a", holders, waiting, reasons, remaining: Some(Duration::from_secs(7)) }
    }

    #[test]
    fn free_lock_needs_nothing() {
        assert_eq!(facts(0, 0, &[]).verdict().title, "Free");
        assert_eq!(facts(0, 0, &[]).steps(), []);
    }

    #[test]
    fn harmless_step_is_first_and_force_is_last() {
        for reasons in [&[][..], &[Reason::NotRenewed], &[Reason::Deadlocked], &[Reason::LongQueue(20)]] {
            let actions: Vec<_> =
                facts(1, 3, reasons).steps().into_iter().filter_map(|step| step.action).collect();
            assert_eq!(actions.last(), Some(&Action::Break));
            assert_eq!(actions[actions.len() - 2], Action::Revoke);
        }
        let first = &facts(1, 3, &[Reason::NotRenewed]).steps()[0];
        assert!(first.text.starts_with("Wait"), "{first:?}");
    }

    #[test]
    fn deadlock_outweighs_the_rest() {
        let verdict = facts(1, 3, &[Reason::Deadlocked, Reason::NotRenewed]).verdict();
        assert_eq!((verdict.tone, verdict.title.as_str()), ("bad", "Part of a deadlock"));
        assert!(facts(1, 0, &[Reason::NotRenewed]).verdict().text.contains("within 7 s"));
    }

    #[test]
    fn name_is_one_word_of_a_shell() {
        assert_eq!(Action::Revoke.command("orders/42"), "leasehold revoke orders/42");
        assert_eq!(Action::Break.command("a b; rm -rf '*'"), "leasehold break 'a b; rm -rf '\\''*'\\'''");
        assert_eq!(Action::Break.command("-x"), "leasehold break -- '-x'");
    }
}
