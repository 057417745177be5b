//! The questions of a store, and how they are answered.

use std::fmt::Debug;
use std::io;

/// A request that is not answered yet, and the protocol of its answer.
pub trait Question: Debug + Send + 'static {
    /// One reply of the server, of which an answer may need several.
    type Reply;
    /// All that a request is answered with.
    type Answer: Debug + Send + 'static;

    /// The portions in which the answers to all requests are handed out. One portion costs a turn of the task of the
    /// connection, and a write of what follows.
    const PORTIONS: usize;

    /// Reads the first reply, of one byte at least, and returns it with its length in bytes; `None` if its end has not
    /// arrived, and matters.
    /// If the reply is longer than `bytes`, the rest of it is skipped as it arrives, and never kept.
    ///
    /// # Errors
    /// The bytes are not a reply, or too many for one; see [`garbled`]. The connection ends.
    fn read(bytes: &[u8]) -> io::Result<Option<(Self::Reply, usize)>>;

    /// Takes the next reply, and returns the answer with the last one. Runs under the lock of the connection.
    ///
    /// # Errors
    /// The reply belongs to another request; see [`garbled`]. The connection ends.
    fn take(&mut self, reply: Self::Reply) -> io::Result<Option<Self::Answer>>;
}

/// The answer to a question, or the reason why there is none.
pub type Answer<Q> = Result<<Q as Question>::Answer, NoAnswer>;

/// The reason for a missing answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The request never left this process.
    Unsent,
    /// The request was sent, and the connection broke.
    Broken,
    /// The request was sent, and no answer came in time.
    Late,
}

/// Returns the error of bytes that make no sense.
pub fn garbled(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}
