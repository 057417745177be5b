//! Whether this program can pause the time of a runtime: only with the feature `test-util` of tokio.
//!
//! No crate can see the features of another one. But a method of a type comes before one of a trait with the same name,
//! so the call below is tokio's own where its feature is on, and that of the trait elsewhere. Nothing is decided at run
//! time.

use tokio::runtime::Builder;

/// Returns `true` if tokio was built with the feature by which tests pause the time of a runtime.
pub(super) fn is_runtime_pausable() -> bool {
    Builder::new_current_thread().start_paused(true).is_pausable()
}

/// The method of a tokio without that feature.
#[allow(dead_code, reason = "tokio's own method comes first where its feature is on")]
trait Unpausable {
    fn start_paused(&mut self, _: bool) -> Never {
        Never
    }
}

impl Unpausable for Builder {}

/// The result of [`Unpausable::start_paused`].
#[allow(dead_code, reason = "tokio's own method comes first where its feature is on")]
struct Never;

trait Pausable {
    fn is_pausable(&self) -> bool;
}

impl Pausable for Builder {
    fn is_pausable(&self) -> bool {
        true
    }
}

impl Pausable for Never {
    fn is_pausable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_runtimes_of_these_tests_can_be_paused() {
        assert!(super::is_runtime_pausable());
    }
}
