//! A gate before a program: a process that starts it waits there until the test lets it begin.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::fanotify::{
    EventFFlags, Fanotify, FanotifyEvent, FanotifyResponse, InitFlags, MarkFlags, MaskFlags, Response,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::LIMIT;

/// The kernel lets nobody begin a program before this process has said so.
pub(crate) struct Gate(Fanotify);

impl Gate {
    /// `None` where the user may not do that, which takes root.
    pub(crate) fn before_or_skip(program: &Path) -> Option<Gate> {
        let made = Fanotify::init(InitFlags::FAN_CLASS_CONTENT, EventFFlags::O_CLOEXEC).and_then(|gate| {
            let (flags, mask) = (MarkFlags::FAN_MARK_ADD, MaskFlags::FAN_OPEN_EXEC_PERM);
            gate.mark(flags, mask, rustix::fs::CWD, Some(program)).map(|()| Gate(gate))
        });
        made.inspect_err(|error| leasehold_testkit::require::skip("fanotify", &error.to_string())).ok()
    }

    /// Waits until a process is at the gate.
    pub(crate) fn wait(&self) -> FanotifyEvent {
        let limit = Timespec::try_from(LIMIT).unwrap();
        assert_eq!(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)), Ok(1), "nobody is there");
        self.0.read_events().unwrap().pop().unwrap()
    }

    /// Lets it begin, unless it has been killed at the gate.
    pub(crate) fn open(&self, event: &FanotifyEvent) {
        let response = FanotifyResponse::new(event.fd().unwrap(), Response::FAN_ALLOW);
        match self.0.write_response(response) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
