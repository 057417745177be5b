//! A fence in the header of an HTTP request: its format, and the answers to it.
//!
//! The client sends its fence with *every* request, reads included. The service keeps a [`FenceGate`]
//! per resource (or a fence beside its data, if it must survive a restart), opens it with the fence of
//! each request, and answers a refusal with [`HeaderRefusal::status`]. It knows no HTTP library: names
//! and values are texts.
//!
//! ```
//! use leasehold::{Fence, fenced::{FenceGate, header}};
//!
//! // In the client:
//! let line = format!("{}: {}", header::NAME, header::value(Fence::new(0, 34, 0))?);
//! assert_eq!(line, "Leasehold-Fence: 00000000000000000034");
//! // In the service, for each request:
//! let account = FenceGate::new(100);
//! let admitted = header::open(&account, Some(b"00000000000000000034"))?;
//! admitted.access(|balance| *balance -= 1)?;
//! let refusal = header::open(&account, Some(b"00000000000000000033")).unwrap_err();
//! assert_eq!(refusal.status(), 412);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use leasehold_core::Fence;

use super::{FenceError, FenceGate, FencedAccess, NoFence, Stale, required};

/// The name of the header. Header names are compared without regard to case.
pub const NAME: &str = "Leasehold-Fence";

/// Returns the value of the header.
///
/// # Errors
/// [`NoFence`].
pub fn value(fence: impl Into<Option<Fence>>) -> Result<String, NoFence> {
    required(fence).map(|fence| fence.to_string())
}

/// Parses the value of the header; `None` is a request without the header.
///
/// # Errors
/// `Missing`, `Malformed`. A service has to refuse a request that has the header twice.
pub fn parse(value: Option<&[u8]>) -> Result<Fence, HeaderRefusal> {
    let value = value.ok_or(HeaderRefusal::Missing)?;
    let text = str::from_utf8(value).map_err(|_| HeaderRefusal::Malformed)?;
    text.trim_matches([' ', '\t']).parse().map_err(|_| HeaderRefusal::Malformed)
}

/// Parses the value of the header, and opens the gate with it.
///
/// # Errors
/// `Missing`, `Malformed`, `Stale`.
pub fn open<T>(gate: &FenceGate<T>, value: Option<&[u8]>) -> Result<FencedAccess<T>, HeaderRefusal> {
    gate.open(parse(value)?).map_err(|refused| match refused {
        FenceError::Stale(stale) => HeaderRefusal::Stale(stale),
        FenceError::NoFence(_) => HeaderRefusal::Missing,
    })
}

/// The reason why a service refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderRefusal {
    /// The request has no fence. To accept such requests would be to accept every request.
    #[error("this resource is fenced: send the header {NAME} with the fence of your lock")]
    Missing,
    /// The header does not hold a fence.
    #[error("the header {NAME} does not hold a fence: send the text of guard.fence(), or of LEASEHOLD_FENCE")]
    Malformed,
    /// A newer holder was here.
    #[error(transparent)]
    Stale(#[from] Stale),
}

impl HeaderRefusal {
    /// Returns the status code: 428 if the header is missing, 400 if it cannot be parsed, 412 if a
    /// newer holder was here.
    pub fn status(&self) -> u16 {
        match self {
            HeaderRefusal::Missing => 428,
            HeaderRefusal::Malformed => 400,
            HeaderRefusal::Stale(_) => 412,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_header_reads_back_what_was_written() {
        for fence in [Fence::new(0, 1, 0), Fence::new(3, u64::MAX, 0), Fence::new(0, 9, 9)] {
            let written = value(fence).unwrap();
            assert!(written.bytes().all(|byte| byte.is_ascii_graphic()), "{written}");
            assert_eq!(parse(Some(format!(" {written}\t").as_bytes())), Ok(fence));
        }
        assert_eq!(value(None), Err(NoFence));
    }

    #[test]
    fn fence_header_refuses_malformed_values() {
        assert_eq!(parse(None).unwrap_err().status(), 428);
        for bad in
            [&b""[..], b"34", b"-0000000000000000034", b"00000000000000000034, 00000000000000000035", b"\xff"]
        {
            assert_eq!(parse(Some(bad)).unwrap_err().status(), 400);
        }
    }
}
