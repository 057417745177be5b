//! A fork of this process that waits until it is needed as a warden.
//!
//! The warden could always be the same program, started once more. A quarter of the time of a short `run` would then be
//! that of the loader, which resolves some fifty thousand pointers at each start. So `run` forks before it does anything
//! else, and the fork becomes the warden if the lock is held soon. What needs a warden later starts the program.
//!
//! Ground rules: the process has one thread when it forks, so the fork may do all that a program may. The fork keeps
//! nothing of leasehold's: no descriptor, no directory, no command line that shows it, and nothing of its environment,
//! also not in its memory, where words of the command line can be left. All of that is done before it says that it is
//! ready. If a step fails, it ends.

#![cfg_attr(
    target_os = "linux",
    allow(unsafe_code, reason = "no safe interface forks, or names a process anew")
)]

#[cfg(target_os = "linux")]
pub(crate) use linux::{Fork, Spare};

/// The process that continues after [`fork`].
pub(crate) enum Forked {
    /// The fork.
    Fork(Fork),
    /// This one, which continues as leasehold; `None` without a fork.
    Leasehold(Option<Spare>),
}

/// Forks this process, if its command line shows that it may need a warden. It is called before anything else is done.
pub(crate) fn fork() -> Forked {
    let mut words = std::env::args_os().skip(1);
    let is_run = words.next().is_some_and(|verb| verb == "run");
    // A command that replaces this process would have a child that it does not know.
    let has_warden = is_run && words.take_while(|word| word != "--").all(|word| word != "--exec");
    #[cfg(target_os = "linux")]
    if has_warden {
        return linux::fork();
    }
    let _ = has_warden;
    Forked::Leasehold(None)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::{self, IoSlice, IoSliceMut};
    use std::mem::MaybeUninit;
    use std::ops::Range;
    use std::os::fd::{AsFd, OwnedFd};
    use std::ptr::{null_mut, with_exposed_provenance_mut, write_bytes};

    use leasehold::SystemClock;
    use leasehold::backend::Clock;
    use nix::libc;
    use nix::sys::signal::{SigSet, SigmaskHow};
    use nix::unistd::ForkResult;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg,
        socketpair,
    };
    use rustix::process::{
        Pid, PidfdFlags, PrctlMmMap, Signal, WaitId, WaitIdOptions, WaitOptions,
        configure_virtual_memory_map, getppid, pidfd_open, pidfd_send_signal, setpgid, waitid, waitpid,
    };
    use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdin};

    use super::Forked;
    use crate::system::descriptors::close_inherited;
    use crate::system::kill_tree::{END_LIMIT, WARDEN_NAME, take_name};
    use crate::system::processes::{Identity, Process};

    /// A fork, as this process has it. It ends when this is dropped.
    #[derive(Debug)]
    pub(crate) struct Spare {
        pid: Pid,
        /// Its id may be that of another process once another part of this process has reaped it.
        handle: OwnedFd,
        /// `None` once it is a warden.
        socket: Option<OwnedFd>,
    }

    /// The fork itself.
    pub(crate) struct Fork {
        socket: OwnedFd,
        layout: Layout,
    }

    pub(super) fn fork() -> Forked {
        spare().unwrap_or(Forked::Leasehold(None))
    }

    fn spare() -> Option<Forked> {
        let layout = Layout::of_this_process()?;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (socket, its_socket) = pair.ok()?;
        // As for a warden that is started: at no moment can a signal to the group end it.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok()?;
        // SAFETY: this process has one thread, as its layout says, so the fork finds no lock that another one holds.
        let forked = unsafe { nix::unistd::fork() };
        if matches!(forked, Ok(ForkResult::Child)) {
            return Some(Forked::Fork(Fork { socket: its_socket, layout }));
        }
        let _ = before.thread_set_mask();
        let Ok(ForkResult::Parent { child }) = forked else { return None };
        let pid = Pid::from_raw(child.as_raw())?;
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            // Without a handle it could be mistaken for another later. It ends, since its socket is closed.
            drop(socket);
            while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
            return None;
        };
        Some(Forked::Leasehold(Some(Spare { pid, handle, socket: Some(socket) })))
    }

    impl Spare {
        /// Makes it the warden: it gets the descriptors, and has left everything of leasehold's when this returns. The
        /// results are its id and the end of the connection for messages.
        ///
        /// # Errors
        /// It has ended, or is not ready in time; there are too many descriptors.
        pub(crate) fn engage(mut self, liveness_fds: &[OwnedFd]) -> io::Result<(Pid, OwnedFd)> {
            let socket = self.socket.as_ref().ok_or(Errno::NOTCONN)?;
            let count = u8::try_from(liveness_fds.len())
                .ok()
                .filter(|count| *count <= MAX_LIVENESS_FDS)
                .ok_or(Errno::MFILE)?;
            let mut space = [MaybeUninit::uninit(); SPACE];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds: Vec<_> = liveness_fds.iter().map(AsFd::as_fd).collect();
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(Errno::MFILE.into());
            }
            sendmsg(socket, &[IoSlice::new(&[count])], &mut control, SendFlags::NOSIGNAL)?;
            let limit = Timespec { tv_sec: READY_LIMIT, tv_nsec: 0 };
            let is_ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit))? == 1
                && rustix::io::read(socket, &mut [0; 1])? == 1;
            if !is_ready {
                return Err(Errno::TIMEDOUT.into());
            }
            // A message that does not fit is dropped: leasehold never waits for the warden, which could be stopped.
            rustix::io::ioctl_fionbio(socket, true)?;
            Ok((self.pid, self.socket.take().ok_or(Errno::NOTCONN)?))
        }
    }

    impl Drop for Spare {
        fn drop(&mut self) {
            if self.socket.is_none() {
                return;
            }
            let _ = pidfd_send_signal(&self.handle, Signal::KILL);
            // The handle is ready at its end. The limit is for one that hangs in the kernel.
            let limit = SystemClock.now().after(END_LIMIT);
            let has_ended = || {
                let rest = Timespec::try_from(SystemClock.now().until(limit)).ok();
                poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], rest.as_ref())
            };
            while matches!(has_ended(), Err(Errno::INTR)) {}
            let _ = waitid(WaitId::PidFd(self.handle.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }

    impl Fork {
        /// Leaves everything of leasehold's, and waits until it is needed as a warden. The result is what it keeps open;
        /// `None` if it is not needed, or cannot be one. Its stdin has the messages.
        pub(crate) fn become_warden(self) -> Option<Vec<OwnedFd>> {
            let leader = self.layout.leader().map(|leader| leader.to_string()).unwrap_or_default();
            let parent = getppid()?.as_raw_pid();
            setpgid(None, None).ok()?;
            let nowhere = File::options().read(true).write(true).open("/dev/null").ok()?;
            dup2_stdin(&self.socket).ok()?;
            dup2_stdout(&nowhere).ok()?;
            dup2_stderr(&nowhere).ok()?;
            drop((self.socket, nowhere));
            close_all();
            rustix::process::chdir("/").ok()?;
            // The words that a warden is started with.
            self.layout.replace_words(format!("{WARDEN_NAME}\0{parent}\0{leader}\0").into_bytes()).ok()?;
            take_name();
            let liveness_fds = received()?;
            (rustix::io::write(stdin(), &[1]) == Ok(1)).then_some(liveness_fds)
        }
    }

    /// Closes all descriptors except the three streams.
    fn close_all() {
        // SAFETY: nothing in the fork owns one of them any more.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
        if closed != 0 {
            // A kernel before 5.9.
            close_inherited();
        }
    }

    /// Waits for the descriptors of a warden; `None` if leasehold needs none, or they do not arrive.
    fn received() -> Option<Vec<OwnedFd>> {
        let mut count = [0; 1];
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message =
            recvmsg(stdin(), &mut [IoSliceMut::new(&mut count)], &mut control, RecvFlags::CMSG_CLOEXEC)
                .ok()?;
        let mut liveness_fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                liveness_fds.extend(fds);
            }
        }
        let is_whole = message.bytes == 1 && !message.flags.contains(ReturnFlags::CTRUNC);
        (is_whole && liveness_fds.len() == usize::from(count[0])).then_some(liveness_fds)
    }

    /// The places of a program in its memory.
    struct Layout {
        /// Leasehold.
        process: Process,
        map: PrctlMmMap,
        arguments: Range<u64>,
        environment: Range<u64>,
    }

    impl Layout {
        /// Returns that of this process; `None` if it cannot be found out, or the process has more than one thread.
        fn of_this_process() -> Option<Layout> {
            let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
            // SAFETY: it moves nothing, and returns where the heap ends.
            let brk = unsafe { libc::sbrk(0) };
            Layout::read(&stat, brk.addr() as u64)
        }

        fn read(stat: &str, brk: u64) -> Option<Layout> {
            // The name may hold anything, parentheses and spaces included.
            let (_, rest) = stat.rsplit_once(") ")?;
            let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
            // The numbers are those of `proc_pid_stat(5)`. The state is the third field, and the first one here.
            let field =
                |number: usize| fields.get(number - 3)?.parse::<u64>().ok().filter(|value| *value > 0);
            if field(20)? != 1 {
                return None;
            }
            let [arguments, environment] = [field(48)?..field(49)?, field(50)?..field(51)?];
            let is_sound =
                |words: &Range<u64>| words.end.checked_sub(words.start).is_some_and(|size| size <= MAX_WORDS);
            if !is_sound(&arguments) || !is_sound(&environment) {
                return None;
            }
            let map = PrctlMmMap {
                start_code: field(26)?,
                end_code: field(27)?,
                start_stack: field(28)?,
                start_data: field(45)?,
                end_data: field(46)?,
                start_brk: field(47)?,
                brk,
                arg_start: arguments.start,
                arg_end: arguments.end,
                env_start: environment.start,
                env_end: environment.end,
                auxv: null_mut(),
                auxv_size: 0,
                // The program stays the same.
                exe_fd: -1,
            };
            Some(Layout { process: Process::read(stat)?, map, arguments, environment })
        }

        /// Returns the leader of the group of leasehold, as [`leader`](crate::system::processes::leader) does there.
        fn leader(&self) -> Option<Identity> {
            match self.process.group? {
                group if group == self.process.pid => Some(self.process.identity()),
                group => Identity::of(group),
            }
        }

        /// Lets these be the words of the command line, each with a zero byte behind it, and the environment be empty.
        /// The memory does not keep the former environment. Copies of the former words can be left on the heap.
        ///
        /// # Errors
        /// The kernel refuses it.
        fn replace_words(mut self, words: Vec<u8>) -> io::Result<()> {
            // They are there as long as this process.
            let words: &'static [u8] = words.leak();
            self.map.arg_start = words.as_ptr().addr() as u64;
            self.map.arg_end = self.map.arg_start + words.len() as u64;
            (self.map.env_start, self.map.env_end) = (self.map.arg_end, self.map.arg_end);
            // SAFETY: all places are those that the kernel has named, except those of the words, which stay.
            unsafe { configure_virtual_memory_map(&self.map) }?;
            for old in [self.arguments, self.environment] {
                let begin =
                    with_exposed_provenance_mut::<u8>(usize::try_from(old.start).map_err(io::Error::other)?);
                let size = usize::try_from(old.end - old.start).map_err(io::Error::other)?;
                // SAFETY: the kernel has put the strings of the two lists there, above the stack of the only thread. No
                // reference to them exists. Who reads a list from now on finds empty strings, which end where they did.
                unsafe { write_bytes(begin, 0, size) };
            }
            Ok(())
        }
    }

    /// The number of descriptors that a fork can be given. A run with more starts a warden.
    const MAX_LIVENESS_FDS: u8 = 64;
    const SPACE: usize = rustix::cmsg_space!(ScmRights(64));
    /// The seconds that a fork has to be ready. It has had all of the time since the start of leasehold.
    const READY_LIMIT: i64 = 1;
    /// The kernel allows less.
    const MAX_WORDS: u64 = 1 << 30;

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn process_with_several_threads_is_not_forked() {
            // The test runner has a thread for each test, and waits in another.
            assert!(Layout::of_this_process().is_none());
            assert!(spare().is_none());
        }

        #[test]
        fn layout_is_read_from_the_fields_of_the_kernel() {
            let stat = |threads: u64, from: u64| {
                let fields: Vec<String> = (4..=52)
                    .map(|number| match number {
                        5 => 7,
                        20 => threads,
                        48 => from,
                        number => number * 10,
                    })
                    .map(|value| value.to_string())
                    .collect();
                format!("7 (a) S b) S {}\n", fields.join(" "))
            };
            let layout = Layout::read(&stat(1, 480), 475).unwrap();
            assert_eq!(layout.leader().map(|leader| leader.to_string()), Some("7.220".to_owned()));
            assert_eq!((layout.arguments, layout.environment), (480..490, 500..510));
            let map = layout.map;
            let code = [map.start_code, map.end_code, map.start_stack];
            assert_eq!(code, [260, 270, 280]);
            assert_eq!([map.start_data, map.end_data, map.start_brk, map.brk], [450, 460, 470, 475]);
            assert!(Layout::read(&stat(2, 480), 475).is_none(), "several threads");
            assert!(Layout::read(&stat(1, 491), 475).is_none(), "an end before the beginning");
            assert!(Layout::read(&stat(1, 0), 475).is_none(), "a place that this process may not see");
            assert!(Layout::read("nonsense", 475).is_none());
        }
    }
}

// No other system lets a fork have a command line of its own.
#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::process::Pid;

    #[derive(Debug)]
    pub(crate) enum Spare {}
    pub(crate) enum Fork {}

    impl Spare {
        pub(crate) fn engage(self, _: &[OwnedFd]) -> io::Result<(Pid, OwnedFd)> {
            match self {}
        }
    }

    impl Fork {
        pub(crate) fn become_warden(self) -> Option<Vec<OwnedFd>> {
            match self {}
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::{Fork, Spare};
