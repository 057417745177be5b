//! A descriptor of a script whose end this process notices: the other end of a pipe.
//!
//! Ground rules: the script opens it by way of `/proc`, and says so with a byte. Until then this process keeps that end
//! open itself, so that "nobody has it yet" differs from "nobody has it any more".

use std::io::{self, PipeWriter};
use std::os::fd::AsRawFd;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// This process's end.
#[derive(Debug)]
pub(crate) struct ScriptFd {
    reader: Receiver,
    /// `None` as soon as the script has its own.
    other_end: Option<PipeWriter>,
}

impl ScriptFd {
    /// Makes the pipe. It needs a runtime.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<ScriptFd> {
        let (reader, other_end) = io::pipe()?;
        Ok(ScriptFd { reader: Receiver::from_owned_fd(reader.into())?, other_end: Some(other_end) })
    }

    /// Returns the path by which a process of the same user opens the other end for writing.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.reader.as_raw_fd())
    }

    /// Waits until the script has it open.
    pub(crate) async fn opened(&mut self) {
        while self.other_end.is_some() {
            match self.reader.read(&mut [0; 64]).await {
                Ok(1..) => self.other_end = None,
                // While this process has the other end open, this never happens.
                Ok(0) | Err(_) => std::future::pending().await,
            }
        }
    }

    /// Waits until all have closed it that had it.
    pub(crate) async fn closed(&mut self) {
        while !matches!(self.reader.read(&mut [0; 64]).await, Ok(0) | Err(_)) {}
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn last_copy_that_is_closed_is_the_end() {
        let mut fd = ScriptFd::new().unwrap();
        let of_script = std::fs::File::options().write(true).open(fd.path()).unwrap();
        let inherited = of_script.try_clone().unwrap();
        io::Write::write_all(&mut &of_script, b"\n").unwrap();
        fd.opened().await;
        drop(of_script);
        let pause = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(pause, fd.closed()).await.is_err(), "a copy is open");
        drop(inherited);
        fd.closed().await;
    }
}
