//! Defects that were found in the engine once, to be put back by the tests that must find them again.
//!
//! Ground rules: what is put back stands in the code as `mutant!("name")`, which is `false` where this crate is compiled for
//! anybody but the simulation of the engine.

/// Whether this defect is there.
#[cfg(not(leasehold_sim))]
macro_rules! mutant {
    ($name:literal) => {
        false
    };
}

#[cfg(leasehold_sim)]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::is_there($name)
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

/// Ends a task with what is returned, where this defect is there.
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
