//! The limit on the lengths of the variables that describe the locks of a command.
//!
//! Ground rules: a command that could not be started is refused before its locks are requested. No claim is left out
//! to shorten them, because a nested run that does not know of a claim waits for itself; those that are over are.

use leasehold::{Client, Fence, FenceGrade, Resource};

use crate::exit::{Exit, Problem};
use crate::process::environment::{Variables, variables};
use crate::process::section;
use crate::request::Request;
use crate::request::keepers::{KEEPER_VARIABLE, KeeperAddress, Keepers};
use crate::request::reentry::{Outer, TAG, Tags};
use crate::system::keeper_socket::{SocketAddress, draw};

/// Returns the tags to pass on: all of them, or, if the variables are too long, those whose keepers may live. `outer`
/// are the locks that outer runs and sections hold, and `free` is the number of the others.
///
/// # Errors
/// Usage, if a variable would be too long for the start of any program.
pub(crate) async fn tags_to_pass_on(
    request: &Request,
    locks: &Client,
    outer: &[(Resource, Outer)],
    free: usize,
    tags: Tags,
) -> Result<Tags, Problem> {
    let length =
        VariableLengths { request, has_fences: locks.profile().fencing != FenceGrade::None, outer, free };
    if length.check(&tags, Keepers::inherited()).is_ok() {
        return Ok(tags);
    }
    let (living, over) = section::living().await;
    let tags = tags.without(&over);
    length.check(&tags, Keepers::new(living))?;
    Ok(tags)
}

/// The lengths of all variables, as far as they are known before the locks are held.
struct VariableLengths<'a> {
    request: &'a Request,
    has_fences: bool,
    outer: &'a [(Resource, Outer)],
    free: usize,
}

impl VariableLengths<'_> {
    fn check(&self, tags: &Tags, keepers: Keepers) -> Result<(), Problem> {
        let own: Vec<_> = std::iter::repeat_n("0".repeat(TAG), self.free).collect();
        // An epoch makes a fence longer, but only the store knows of one.
        let next = self.has_fences.then(Fence::default);
        let outer = |name| self.outer.iter().find(|(held, _)| held == name).map(|(_, outer)| outer.fence);
        let fences: Vec<_> = self.request.names().map(|name| (name, outer(name).unwrap_or(next))).collect();
        let mut all: Variables = variables(self.request, &fences, tags.with(own.clone()));
        if !self.request.callers.is_empty() {
            let keeper = KeeperAddress {
                socket: SocketAddress::here(draw()),
                callers: self.request.callers.iter().map(|caller| caller.pid.as_raw_pid()).collect(),
                tags: own,
                lock: self.request.name.clone(),
            };
            all.push((KEEPER_VARIABLE, Some(keepers.and(keeper).to_string())));
        }
        all.iter().try_for_each(|(name, value)| check(name, value.as_deref().unwrap_or_default()))
    }
}

fn check(name: &str, value: &str) -> Result<(), Problem> {
    // The kernel counts the sign between them and the end.
    let length = name.len() + value.len() + 2;
    if length <= LONGEST {
        return Ok(());
    }
    let text = format!(
        "{name} would have {length} bytes, and no program can be started with a variable of more than {LONGEST}: hold \
         fewer locks at a time, by --also and by outer runs"
    );
    Err(Problem::new(Exit::Usage, text))
}

/// The longest variable of a program, in bytes: `MAX_ARG_STRLEN` of Linux with pages of 4 KiB.
const LONGEST: usize = 128 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_starts_with_a_variable_of_the_greatest_length() {
        let value = "a".repeat(LONGEST - "A=\0".len());
        assert!(check("A", &value).is_ok() && check("AA", &value).is_err());
        assert!(std::process::Command::new("true").env("A", &value).status().is_ok());
        // Other systems, and larger pages, have room for more.
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        assert!(std::process::Command::new("true").env("AA", &value).status().is_err());
    }
}
