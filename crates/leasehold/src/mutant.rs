//! Defects that were once found in the engine. Tests put them back, and must find them again.
//!
//! Ground rules: a defect is written in the code as `mutant!("name")`, which is `false` unless this crate is
//! compiled for the simulation of the engine.

/// Returns `true` if this defect, or one of several, is put back.
#[cfg(not(leasehold_sim))]
macro_rules! mutant {
    ($($name:literal)|+) => {
        false
    };
}

#[cfg(leasehold_sim)]
macro_rules! mutant {
    ($($name:literal)|+) => {
        $($crate::mutant::is_there($name))||+
    };
}

pub(crate) use mutant;

#[cfg(leasehold_sim)]
thread_local! {
    static THERE: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
}

/// Puts one defect back, or none, on this thread.
#[cfg(leasehold_sim)]
pub(crate) fn put_back(name: &'static str) {
    THERE.set(name);
}

/// Ends a task with the given value, if this defect is put back.
#[cfg(leasehold_sim)]
pub(crate) fn aborted<T>(name: &str, task: &tokio::task::JoinHandle<T>) -> Option<Aborted> {
    is_there(name).then(|| Aborted(task.abort_handle()))
}

#[cfg(leasehold_sim)]
pub(crate) struct Aborted(tokio::task::AbortHandle);

#[cfg(leasehold_sim)]
impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(leasehold_sim)]
pub(crate) fn is_there(name: &str) -> bool {
    THERE.get() == name
}
