//! The id of this process, without a system call for each reading.
//!
//! An acquisition and its release ask some thirty times whether they run in a fork, and a system call for each
//! of these checks takes more time than everything else that the engine does. So the id is kept in a page
//! that the kernel clears in a fork (`MADV_WIPEONFORK` of madvise(2), Linux 4.14). This includes a fork by a
//! bare system call, which `pthread_atfork` does not notice. Without such a page, each reading is a system
//! call.

#![allow(unsafe_code, reason = "no safe interface marks memory that a fork gets cleared")]

/// Returns the id of the process in which this code runs, also in a fork, mostly without a system call.
#[inline]
pub fn process_id() -> u32 {
    #[cfg(target_os = "linux")]
    if let Some(page) = page::cleared_in_forks() {
        return page::id_in(page);
    }
    std::process::id()
}

#[cfg(target_os = "linux")]
mod page {
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

    /// Stands for a page that the kernel did not give.
    static NO_PAGE: AtomicU32 = AtomicU32::new(0);

    /// Returns the first number of the page; `None` if the kernel gives no such page.
    #[inline]
    pub(super) fn cleared_in_forks() -> Option<&'static AtomicU32> {
        // No lock: a fork that is made while another thread holds one would wait for ever.
        static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
        let mut page = PAGE.load(Ordering::Acquire);
        if page.is_null() {
            page = map_first(&PAGE);
        }
        // SAFETY: the pointer was made from a reference that is valid for ever, to `NO_PAGE` or by `map`.
        let page = unsafe { &*page };
        (!std::ptr::eq(page, &NO_PAGE)).then_some(page)
    }

    /// Maps the page, unless another thread is faster.
    #[cold]
    fn map_first(page: &AtomicPtr<AtomicU32>) -> *mut AtomicU32 {
        let mapped = map().unwrap_or(&NO_PAGE);
        let new = std::ptr::from_ref(mapped).cast_mut();
        match page.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            // This page of 4 KiB is left unused.
            Err(first) => first,
        }
    }

    /// Reads the id, and writes it first in a process that has not done so.
    #[inline]
    pub(super) fn id_in(page: &AtomicU32) -> u32 {
        // No process that runs this has the id 0, so the number is 0 in a fork that has not written it yet.
        match page.load(Ordering::Relaxed) {
            0 => {
                let id = std::process::id();
                page.store(id, Ordering::Relaxed);
                id
            }
            id => id,
        }
    }

    fn map() -> Option<&'static AtomicU32> {
        let size = rustix::param::page_size();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice overlaps no other memory.
        let page = unsafe { mmap_anonymous(null_mut(), size, rights, MapFlags::PRIVATE) }.ok()?;
        // SAFETY: the range is the mapping above, which nothing else uses yet. The advice changes its content
        // in a fork only, before the fork runs any code.
        if unsafe { madvise(page, size, Advice::LinuxWipeOnFork) }.is_err() {
            // SAFETY: the mapping above, and the only pointer to it.
            let _ = unsafe { rustix::mm::munmap(page, size) };
            return None;
        }
        // SAFETY: the page is aligned for a number, zero is a value of it, it is never unmapped, and all
        // access to it is atomic.
        Some(unsafe { &*page.cast::<AtomicU32>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_id_is_that_of_the_system() {
        assert_eq!(process_id(), std::process::id());
        let other = std::thread::spawn(process_id).join();
        assert_eq!(other.ok(), Some(std::process::id()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn cleared_page_is_written_anew() {
        let cleared = std::sync::atomic::AtomicU32::new(0);
        assert_eq!(page::id_in(&cleared), std::process::id());
        assert_eq!(page::id_in(&cleared), std::process::id(), "from the page");
        assert_eq!(page::id_in(&std::sync::atomic::AtomicU32::new(7)), 7, "no system call is made");
    }

    /// The kernel lists for each mapping whether a fork gets it cleared ("wf" of proc(5)). Forks themselves
    /// are tested in `crates/leasehold/tests/engine_fork.rs`.
    #[cfg(target_os = "linux")]
    #[test]
    fn kernel_clears_the_page_in_forks() {
        let Some(page) = page::cleared_in_forks() else {
            println!("the kernel is older than 4.14: each reading is a system call");
            return;
        };
        let address = std::ptr::from_ref(page) as usize;
        // The kernel lists two pages side by side as one mapping if all is alike: another thread may have mapped one.
        let is_in = |line: &str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text: &str| usize::from_str_radix(text, 16).ok();
            range.is_some_and(|(from, to)| number(from) <= Some(address) && Some(address) < number(to))
        };
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let flags =
            maps.lines().skip_while(|line| !is_in(line)).find_map(|line| line.strip_prefix("VmFlags:"));
        assert!(flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "wf")), "{flags:?}");
    }
}
