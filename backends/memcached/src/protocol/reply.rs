//! Answers that are received, read byte by byte as they come.
//!
//! Ground rules: no input makes this panic, and none makes it keep more than one line and one value of the
//! lengths below. A longer value is another program's, and is skipped. Any input that is not exactly an answer of
//! the protocol ends the connection, since the answers could no longer be assigned to their commands.

use crate::protocol::command::MAX_VALUE;

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// An item: its value, its number, and what is left of its life in seconds, `None` where it is endless.
    /// In the place of a value that is longer than any of ours there is a text that says so.
    Item { value: Vec<u8>, number: u64, left: Option<u64>, mark: Option<u32> },
    /// No item.
    Missing { mark: Option<u32> },
    /// The command was carried out.
    Done { mark: Option<u32> },
    /// The command was not carried out: the item has another number, or one exists where none was expected.
    Differs { mark: Option<u32> },
    /// The facts that the server reports of itself.
    Stats(Vec<(String, String)>),
    /// The server refuses.
    Refused(String),
}

impl Reply {
    /// Returns the mark of the command, where the answer repeats it.
    pub(crate) fn mark(&self) -> Option<u32> {
        match self {
            Reply::Item { mark, .. } | Reply::Missing { mark } => *mark,
            Reply::Done { mark } | Reply::Differs { mark } => *mark,
            Reply::Stats(_) | Reply::Refused(_) => None,
        }
    }
}

/// The error of an input that is not an answer of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the input is not an answer of memcached: {0}")]
pub(crate) struct ProtocolError(&'static str);

/// Takes the first whole answer off `input`, with the number of bytes that it has; `None` where more bytes
/// are needed. Of an item whose value is longer than any of ours, the rest may still have to come.
pub(crate) fn read(input: &[u8]) -> Result<Option<(Reply, usize)>, ProtocolError> {
    let Some((line, used)) = read_line(input)? else { return Ok(None) };
    let mut parts = line.split(' ');
    let reply = match parts.next().unwrap_or_default() {
        "VA" => return read_item(&mut parts, &input[used..], used),
        "STAT" => return read_stats(input),
        "END" => Reply::Stats(Vec::new()),
        "STORED" => Reply::Done { mark: None },
        "NOT_STORED" | "EXISTS" => Reply::Differs { mark: None },
        "NOT_FOUND" => Reply::Missing { mark: None },
        "HD" => Reply::Done { mark: Flags::of(&mut parts)?.mark },
        "NS" | "EX" => Reply::Differs { mark: Flags::of(&mut parts)?.mark },
        "NF" | "EN" => Reply::Missing { mark: Flags::of(&mut parts)?.mark },
        "ERROR" | "CLIENT_ERROR" | "SERVER_ERROR" => {
            return Ok(Some((Reply::Refused(line.to_owned()), used)));
        }
        _ => return Err(ProtocolError("an unknown word")),
    };
    match parts.next() {
        None => Ok(Some((reply, used))),
        Some(_) => Err(ProtocolError("more words than there should be")),
    }
}

/// Returns `true` if more than this can be kept without an answer in it.
pub(crate) fn is_overlong(buffered: usize) -> bool {
    buffered > MAX_VALUE + MAX_QUEUE + 4
}

/// Returns the first line without its end, and the number of bytes with it.
fn read_line(input: &[u8]) -> Result<Option<(&str, usize)>, ProtocolError> {
    let window = &input[..input.len().min(MAX_QUEUE)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if input.len() >= MAX_QUEUE { Err(ProtocolError("a line without an end")) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&input[..end]).map_err(|_| ProtocolError("a line that is not text"))?;
    Ok(Some((line, end + 2)))
}

fn read_item<'a>(
    parts: &mut impl Iterator<Item = &'a str>,
    rest: &[u8],
    used: usize,
) -> Result<Option<(Reply, usize)>, ProtocolError> {
    let length = number(parts.next())?;
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_FOREIGN);
    let length = length.ok_or(ProtocolError("a value that is too long"))?;
    let flags = Flags::of(parts)?;
    let number = flags.number.ok_or(ProtocolError("a value without a number"))?;
    let value = if length > MAX_VALUE {
        format!("a value of {length} bytes, with the number {number}").into_bytes()
    } else {
        let Some(body) = rest.get(..length + 2) else { return Ok(None) };
        body.strip_suffix(b"\r\n").ok_or(ProtocolError("a value that does not end"))?.to_vec()
    };
    Ok(Some((Reply::Item { value, number, left: flags.left, mark: flags.mark }, used + length + 2)))
}

/// Lines of `STAT name value`, up to `END`.
fn read_stats(input: &[u8]) -> Result<Option<(Reply, usize)>, ProtocolError> {
    let mut stats = Vec::new();
    let mut at = 0;
    for _ in 0..MAX_STATS {
        let Some((line, used)) = read_line(&input[at..])? else { return Ok(None) };
        at += used;
        if line == "END" {
            return Ok(Some((Reply::Stats(stats), at)));
        }
        let pair = line.strip_prefix("STAT ").ok_or(ProtocolError("a list that is interrupted"))?;
        let (name, value) = pair.split_once(' ').unwrap_or((pair, ""));
        stats.push((name.to_owned(), value.to_owned()));
    }
    Err(ProtocolError("a list without an end"))
}

/// The flags of a meta answer, which follow its first word.
#[derive(Default)]
struct Flags {
    number: Option<u64>,
    left: Option<u64>,
    mark: Option<u32>,
}

impl Flags {
    fn of<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Result<Flags, ProtocolError> {
        let mut flags = Flags::default();
        for part in parts {
            let (flag, token) = part.split_at_checked(1).ok_or(ProtocolError("an empty flag"))?;
            match flag {
                "c" => flags.number = Some(number(Some(token))?),
                "t" if token == "-1" => flags.left = None,
                "t" => flags.left = Some(number(Some(token))?),
                "O" => {
                    let mark =
                        u32::try_from(number(Some(token))?).map_err(|_| ProtocolError("a foreign mark"))?;
                    flags.mark = Some(mark);
                }
                // Newer servers report that an item is stale, or won by another; we never ask for that.
                "W" | "X" | "Z" => {}
                _ => return Err(ProtocolError("an unknown flag")),
            }
        }
        Ok(flags)
    }
}

/// Reads plain decimal digits, as the server writes them.
fn number(part: Option<&str>) -> Result<u64, ProtocolError> {
    let digits = part.filter(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or(ProtocolError("a number that is none"))
}

/// The longest value that a server stores for anyone (`-I`), in bytes.
const MAX_FOREIGN: usize = 1024 * 1024 * 1024;
/// The longest line of an answer, in bytes.
const MAX_QUEUE: usize = 2048;
/// The most lines of one list of statistics.
const MAX_STATS: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(text: &str) -> Reply {
        let (reply, used) = read(text.as_bytes()).unwrap().unwrap();
        assert_eq!(used, text.len());
        reply
    }

    #[test]
    fn answers_are_distinguished() {
        let item = Reply::Item { value: b"hi".to_vec(), number: 12, left: Some(9), mark: Some(3) };
        assert_eq!(whole("VA 2 c12 t9 O3\r\nhi\r\n"), item);
        let endless = Reply::Item { value: b"\r\n".to_vec(), number: 1, left: None, mark: None };
        assert_eq!(whole("VA 2 c1 t-1\r\n\r\n\r\n"), endless);
        assert_eq!(whole("EN O4\r\n"), Reply::Missing { mark: Some(4) });
        assert_eq!(whole("NF O8\r\n"), Reply::Missing { mark: Some(8) });
        assert_eq!(whole("HD c2 O5\r\n"), Reply::Done { mark: Some(5) });
        assert_eq!(whole("EX c0 O6\r\n"), Reply::Differs { mark: Some(6) });
        assert_eq!(whole("STORED\r\n"), Reply::Done { mark: None });
        assert_eq!(whole("NOT_STORED\r\n"), Reply::Differs { mark: None });
        assert_eq!(whole("NOT_FOUND\r\n"), Reply::Missing { mark: None });
        let refused = Reply::Refused("SERVER_ERROR out of memory storing object".to_owned());
        assert_eq!(whole("SERVER_ERROR out of memory storing object\r\n"), refused);
        let stats = vec![("pid".to_owned(), "7".to_owned()), ("inter".to_owned(), String::new())];
        assert_eq!(whole("STAT pid 7\r\nSTAT inter \r\nEND\r\n"), Reply::Stats(stats));
        assert_eq!(whole("END\r\n"), Reply::Stats(Vec::new()));
    }

    #[test]
    fn an_answer_is_read_only_when_all_of_it_is_there() {
        for text in ["VA 2 c12 t9 O3\r\nhi\r\n", "STAT a b\r\nSTAT c d\r\nEND\r\n", "NOT_STORED\r\n"] {
            for end in 0..text.len() {
                assert_eq!(read(&text.as_bytes()[..end]), Ok(None), "{text:?} up to {end}");
            }
            let twice = format!("{text}{text}");
            assert_eq!(read(twice.as_bytes()).unwrap().unwrap().1, text.len());
        }
    }

    #[test]
    fn input_that_is_not_an_answer_is_refused() {
        for text in [
            "HTTP/1.1 400 Bad Request\r\n",
            "VA 2 t9\r\nhi\r\n",
            "VA 2 c1\r\nhiXX",
            "VA 99999999999 c1\r\n",
            "VA 1073741825 c1\r\n",
            "VA 1048577\r\n",
            "VA -1 c1\r\n",
            "VA +1 c1\r\n1\r\n",
            "VA c1\r\n",
            "HD c99999999999999999999\r\n",
            "HD O4294967296\r\n",
            "HD  c1\r\n",
            "STORED 1\r\n",
            "STAT a b\r\nHD\r\n",
            "\r\n",
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(read(&[b'A'; MAX_QUEUE]).is_err());
        let endless = "STAT a b\r\n".repeat(MAX_STATS + 1);
        assert!(read(endless.as_bytes()).is_err());
    }

    #[test]
    fn value_that_is_longer_than_any_of_ours_is_skipped() {
        let head = "VA 1048577 c7 t-1 O3\r\n";
        let value = b"a value of 1048577 bytes, with the number 7".to_vec();
        let item = Reply::Item { value, number: 7, left: None, mark: Some(3) };
        for arrived in ["", "leasehold 1", "\r\n"] {
            let whole = Some((item.clone(), head.len() + MAX_VALUE + 3));
            assert_eq!(read(format!("{head}{arrived}").as_bytes()), Ok(whole));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some((_, used))) = read(&bytes) {
                prop_assert!(used > 0 && (used <= bytes.len() || used > MAX_VALUE));
            }
        }

        /// Reads words that look like the protocol, as random bytes seldom do.
        #[test]
        fn no_words_of_the_protocol_panic(
            words in proptest::collection::vec(
                prop_oneof![
                    Just("VA "), Just("HD"), Just("EN"), Just("STAT "), Just("END"), Just("\r\n"), Just("\r"),
                    Just("\n"), Just(" "), Just("c"), Just("t-1"), Just("O"), Just("18446744073709551615"),
                    Just("1048576"), Just("3"), Just("0"), Just("\u{e9}"), Just("SERVER_ERROR "),
                ],
                0..40,
            )
        ) {
            let bytes = words.concat().into_bytes();
            match read(&bytes) {
                Ok(Some((Reply::Item { value, .. }, used))) => {
                    prop_assert!(value.len() < used && (used <= bytes.len() || used > MAX_VALUE));
                }
                Ok(Some((_, used))) => prop_assert!(used > 0 && used <= bytes.len()),
                Ok(None) | Err(_) => {}
            }
        }

        #[test]
        fn a_value_reads_back(value in proptest::collection::vec(any::<u8>(), 0..300), number: u64) {
            let mut bytes = format!("VA {} c{number} t5\r\n", value.len()).into_bytes();
            bytes.extend_from_slice(&value);
            bytes.extend_from_slice(b"\r\nEN\r\n");
            let (reply, used) = read(&bytes).unwrap().unwrap();
            prop_assert_eq!(used, bytes.len() - 4);
            prop_assert_eq!(reply, Reply::Item { value, number, left: Some(5), mark: None });
        }
    }
}
