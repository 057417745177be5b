//! Reads replies from the bytes of a connection.

use redis::Value;

/// A byte that no reply has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads the first reply, and returns it with its length in bytes; `None` if its end has not arrived.
pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Value, usize)>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    Ok(reader.value(MAX_DEPTH)?.map(|value| (value, reader.at)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads a value that nests at most so deep.
    fn value(&mut self, depth: u8) -> Result<Option<Value>, Malformed> {
        let start = self.at;
        let Some(line) = self.line() else {
            return if self.bytes.len() - start > MAX_LINE { Err(Malformed) } else { Ok(None) };
        };
        let (kind, text) = line.split_first().ok_or(Malformed)?;
        match kind {
            b'+' if text == b"OK" => Ok(Some(Value::Okay)),
            b'+' => Ok(Some(Value::SimpleString(String::from_utf8_lossy(text).into_owned()))),
            b':' => Ok(Some(Value::Int(number(text)?))),
            // Its words are for the client library, which knows the kinds of errors.
            b'-' => redis::parse_redis_value(&self.bytes[start..self.at]).map(Some).map_err(|_| Malformed),
            b'$' => self.text(number(text)?),
            b'*' => self.array(number(text)?, depth),
            _ => Err(Malformed),
        }
    }

    fn text(&mut self, length: i64) -> Result<Option<Value>, Malformed> {
        let Ok(length) = usize::try_from(length) else { return Ok(Some(Value::Nil)) };
        let end = self.at.checked_add(length).filter(|_| length <= MAX_TEXT).ok_or(Malformed)?;
        match self.bytes.get(self.at..end + 2) {
            None => Ok(None),
            Some(text) if text.ends_with(b"\r\n") => {
                self.at = end + 2;
                Ok(Some(Value::BulkString(text[..length].to_vec())))
            }
            Some(_) => Err(Malformed),
        }
    }

    fn array(&mut self, length: i64, depth: u8) -> Result<Option<Value>, Malformed> {
        let Ok(length) = usize::try_from(length) else { return Ok(Some(Value::Nil)) };
        let depth = depth.checked_sub(1).ok_or(Malformed)?;
        // Each element has three bytes at least: a length that is only claimed reserves no memory.
        let mut values = Vec::with_capacity(length.min((self.bytes.len() - self.at) / 3));
        for _ in 0..length {
            match self.value(depth)? {
                Some(value) => values.push(value),
                None => return Ok(None),
            }
        }
        Ok(Some(Value::Array(values)))
    }

    /// Returns the bytes up to the end of the line.
    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let length = rest.windows(2).position(|two| two == b"\r\n")?;
        self.at += length + 2;
        Some(&rest[..length])
    }
}

/// Reads a number in decimal digits.
fn number(text: &[u8]) -> Result<i64, Malformed> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Malformed)
}

/// The scripts nest lists of lists; `CLUSTER` and `ROLE` do not nest deeper.
const MAX_DEPTH: u8 = 16;
/// The longest line that is not followed by a text of its own length: an error.
const MAX_LINE: usize = 64 * 1024;
/// The longest text that a server sends.
const MAX_TEXT: usize = 512 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REPLIES: [&[u8]; 8] = [
        b"+OK\r\n",
        b"+PONG\r\n",
        b":-17\r\n",
        b"$4\r\na\r\nb\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"-NOSCRIPT No matching script\r\n",
        b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n-ERR x\r\n*-1\r\n",
    ];

    #[test]
    fn replies_are_read_as_the_client_library_reads_them() {
        for bytes in REPLIES {
            let (value, length) = read(bytes).unwrap().unwrap();
            assert_eq!((value, length), (redis::parse_redis_value(bytes).unwrap(), bytes.len()));
        }
    }

    #[test]
    fn part_of_a_reply_is_not_a_reply() {
        for bytes in REPLIES {
            for length in 0..bytes.len() {
                assert_eq!(read(&bytes[..length]), Ok(None), "{:?}", &bytes[..length]);
            }
        }
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        let deep = b"*1\r\n".repeat(40);
        for bytes in [&b"\r\n"[..], b"?1\r\n", b":x\r\n", b"$3\r\nabcd\r\n", b"$99999999999\r\n", &deep] {
            assert_eq!(read(bytes), Err(Malformed), "{bytes:?}");
        }
        assert_eq!(read(&b"+".repeat(MAX_LINE + 2)), Err(Malformed));
        assert_eq!(read(b"*9000000000000000000\r\n"), Ok(None));
    }

    proptest! {
        #[test]
        fn nothing_that_arrives_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((_, length))) = read(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
