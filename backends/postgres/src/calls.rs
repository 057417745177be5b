//! Calls as the server carries them to those who listen.

use std::fmt::Write;

use leasehold_cell::Call;
use leasehold_core::Resource;

/// What is told to those who listen: the resource, and who is called, `*` for all, or `-` where something became free.
pub(crate) fn called(at: &Resource, call: &Call) -> String {
    let mut text = match call {
        Call::Nobody => return String::new(),
        Call::Everyone => "*".to_owned(),
        Call::Freed => "-".to_owned(),
        Call::These(_) => String::new(),
    };
    if let Call::These(addresses) = call {
        for address in addresses {
            // Writing into a String does not fail.
            let _ = write!(text, "{address:08x}");
        }
    }
    format!("{text} {}", at.as_str())
}

/// Reads what [`called`] wrote.
pub(crate) fn read_call(text: &str) -> Option<(Resource, Call)> {
    let (call, name) = text.split_once(' ')?;
    let resource = Resource::new(name).ok()?;
    match call {
        "*" => return Some((resource, Call::Everyone)),
        "-" => return Some((resource, Call::Freed)),
        _ => {}
    }
    let digits = call
        .as_bytes()
        .chunks(8)
        .map(|digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
    Some((resource, Call::These(digits.collect::<Option<Vec<u32>>>()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_as_it_was_written() {
        let at = Resource::new("a b* é").unwrap();
        for call in [Call::Everyone, Call::Freed, Call::These(vec![0, 7, u32::MAX])] {
            assert_eq!(read_call(&called(&at, &call)), Some((at.clone(), call)));
        }
        assert_eq!(called(&at, &Call::Nobody), "");
        for bad in ["", "x", "zz a", "0000000g a", "0 "] {
            assert_eq!(read_call(bad), None, "{bad}");
        }
    }
}
