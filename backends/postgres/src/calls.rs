//! Calls as the server carries them to those who listen.

use std::fmt::Write;

use leasehold_cell::Call;
use leasehold_core::{Failure, Resource};

use crate::dial::{Sql, only, read};
use crate::pool::Pool;
use crate::refusal::Refusal;

/// Names the channel of the calls about one table of locks by its schema and its own name: a table that is restored from a
/// backup keeps it.
pub(crate) async fn channel(pool: &Pool) -> Result<String, Failure> {
    let text = format!(
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = '{}'::regclass::oid",
        pool.config.names.table("")
    );
    let rows = pool.look(&Sql { name: "channel", text, types: &[] }, &[]).await;
    let row = only(rows.map_err(Refusal::into_failure)?)?;
    let (schema, table): (String, String) = (read(&row, 0)?, read(&row, 1)?);
    let digest = sha1_smol::Sha1::from(format!("{schema}\0{table}")).digest().to_string();
    Ok(format!("leasehold_{}", &digest[..32]))
}

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
