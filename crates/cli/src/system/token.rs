//! A right that one of several processes gets, and gets once.
//!
//! Ground rules: it is a byte in a pipe, so the kernel decides who has it. A process that ends with it has used it.

use std::io::{self, PipeReader, Write};
use std::os::fd::{AsFd, OwnedFd};

/// The right, for all processes that have its pipe open.
#[derive(Debug)]
pub(crate) struct Token(PipeReader);

impl Token {
    /// Makes one, which nobody has taken.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<Token> {
        let (reader, mut writer) = io::pipe()?;
        // Of the pipe itself, so also for the other processes.
        rustix::io::ioctl_fionbio(&reader, true)?;
        writer.write_all(&[1])?;
        Ok(Token(reader))
    }

    /// Returns `true` if nobody has taken it before.
    pub(crate) fn take(&self) -> bool {
        take_from(&self.0)
    }

    /// Returns a descriptor for another process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

/// Takes the token of a descriptor; `true` if nobody has taken it before.
pub(crate) fn take_from(pipe: impl AsFd) -> bool {
    matches!(rustix::io::read(pipe, &mut [0; 1]), Ok(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_taken_once_by_any_of_its_copies() {
        let token = Token::new().unwrap();
        let copy = token.copy().unwrap();
        assert_eq!([take_from(&copy), token.take(), take_from(&copy)], [true, false, false]);
    }
}
