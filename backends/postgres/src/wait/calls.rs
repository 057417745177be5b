//! Calls as the server carries them to the listeners.

use std::fmt::Write;

use leasehold_backend::cell::Call;
use leasehold_core::Resource;

use crate::config::Names;

/// Names the channel of the calls about one table of locks by its schema and its own name: a table that is restored
/// from a backup keeps it.
pub(crate) fn channel(names: &Names) -> String {
    let (schema, table) = (names.schema().unwrap_or_default(), names.bare(""));
    let digest = sha1_smol::Sha1::from(format!("{schema}\0{table}")).digest().to_string();
    format!("leasehold_{}", &digest[..32])
}

/// Writes the message to the listeners: the resource, and which waiters are called, behind `+` and one that
/// has answered where one has; `*` for all, or `-` where something became free.
pub(crate) fn encode_call(at: &Resource, call: &Call) -> String {
    let (mut text, addresses) = match call {
        Call::None => return String::new(),
        Call::All => ("*".to_owned(), &Vec::new()),
        Call::Freed => ("-".to_owned(), &Vec::new()),
        Call::These(called) => (String::new(), called),
        Call::Answered(answered, called) => (format!("+{answered:08x}"), called),
    };
    for address in addresses {
        // Writing into a String does not fail.
        let _ = write!(text, "{address:08x}");
    }
    format!("{text} {}", at.as_str())
}

/// Reads what [`encode_call`] wrote.
pub(crate) fn decode_call(text: &str) -> Option<(Resource, Call)> {
    let (call, name) = text.split_once(' ')?;
    let resource = Resource::new(name).ok()?;
    match call {
        "*" => return Some((resource, Call::All)),
        "-" => return Some((resource, Call::Freed)),
        _ => {}
    }
    let (answers, digits) = call.strip_prefix('+').map_or((false, call), |digits| (true, digits));
    let mut addresses = digits.as_bytes().chunks(8).map(address).collect::<Option<Vec<u32>>>()?;
    if answers && addresses.is_empty() {
        return None;
    }
    Some((
        resource,
        if answers { Call::Answered(addresses.remove(0), addresses) } else { Call::These(addresses) },
    ))
}

/// Reads an address, which is written in one way.
fn address(digits: &[u8]) -> Option<u32> {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_written = digits.len() == 8 && digits.iter().all(is_digit);
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok().filter(|_| is_written)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients of all versions listen to it.
    #[test]
    fn channel_of_a_schema_stays_the_same() {
        let config = crate::config::PostgresConfig::parse("postgres://me@h?schema=public").unwrap();
        assert_eq!(channel(&config.names), "leasehold_c8f94ed24312e8920bd4e568f0292c7b");
    }

    #[test]
    fn a_call_is_read_as_it_was_written() {
        let at = Resource::new("a b* é").unwrap();
        let these = Call::These(vec![0, 7, u32::MAX]);
        let answered = [Call::Answered(9, vec![]), Call::Answered(0, vec![7, 8])];
        for call in [Call::All, Call::Freed, these].into_iter().chain(answered) {
            assert_eq!(decode_call(&encode_call(&at, &call)), Some((at.clone(), call)));
        }
        assert_eq!(encode_call(&at, &Call::None), "");
        for bad in ["", "x", "zz a", "0000000g a", "0 ", "+ a", "7 a", "0000000A a", "0000000+7 a"] {
            assert_eq!(decode_call(bad), None, "{bad}");
        }
    }
}
