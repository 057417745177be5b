//! The stream under a connection.

use std::fmt::Debug;

use tokio::io::{AsyncRead, AsyncWrite};

/// A byte stream that a connection is made of: a socket, or TLS over one.
pub trait Duplex: AsyncRead + AsyncWrite + Debug + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Debug + Send + Unpin> Duplex for S {}
