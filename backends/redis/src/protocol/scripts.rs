//! The scripts, as they are sent to the server.
//!
//! The server decides everything in these; the Rust code only asks and reads. They are
//! constants: names of resources travel in `KEYS`, everything else in `ARGV`. Only the scripts of a member of a
//! quorum begin with the run of the server, see [`RunScript`].

use std::sync::LazyLock;

/// One script with its name for `EVALSHA`.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: &'static str,
    pub(crate) sha: String,
    pub(crate) extra: ExtraValue,
}

impl Script {
    /// Creates a script of this text.
    pub(crate) fn new(source: &'static str, extra: ExtraValue) -> Script {
        #[cfg(feature = "lua-mutants")]
        let source = mutated(source);
        Script { source, sha: redis::Script::new(source).get_hash().to_owned(), extra }
    }
}

/// A script for one run of a server: its text says which one.
///
/// A server from Redis 7.0 on forgets all scripts when it ends. So the next run does not know a script by this name,
/// and a request for the earlier run is refused there, even if it comes late or through a proxy. Earlier versions put
/// scripts into snapshots and give them to replicas, so there the script asks for the run each time.
#[derive(Debug)]
pub(crate) struct RunScript {
    pub(crate) source: String,
    pub(crate) sha: String,
}

impl RunScript {
    /// Creates the script for a run, whose id has letters and digits alone, or one that asks for the run.
    pub(crate) fn new(script: &Script, run: Option<&str>) -> RunScript {
        let run = run.map_or_else(|| ASK_RUN.to_owned(), |run| format!("'{run}'"));
        let source = format!("local RUN = {run}\n{}", script.source);
        RunScript { sha: redis::Script::new(&source).get_hash().to_owned(), source }
    }
}

/// The expression that asks the server for its run.
const ASK_RUN: &str = "string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')";

/// The value of the connection that a request carries in addition to its own arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtraValue {
    /// Nothing.
    None,
    /// The epoch of the connection over which it is sent, as its last argument.
    Epoch,
    /// The same, but not the epoch 0, unless the right to publish has to be checked over this connection.
    Rights,
    /// The run of the server, in the text of the script.
    Run,
}

/// Returns a script with the change that `cargo xtask lua-mutants` asks for: a file with the text of one of the
/// files that scripts are made of, a line of dashes, and the text that takes its place.
#[cfg(feature = "lua-mutants")]
fn mutated(source: &'static str) -> &'static str {
    let Some(path) = std::env::var_os("LEASEHOLD_LUA_MUTANT") else { return source };
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let Some((from, to)) = text.split_once("\n----\n") else { return source };
    Box::leak(source.replace(from, to).into_boxed_str())
}

macro_rules! script {
    // A shortcut ends the script early: `shortcut` before it creates any function, `alone` before the claims
    // beside this one are of interest.
    (
        $name:ident, $(shortcut $shortcut:literal,)? $(alone $alone:literal,)? $($file:literal)+, $extra:ident,
        $what:literal
    ) => {
        #[doc = $what]
        pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            let source = concat!(
                $(include_str!($shortcut),)?
                include_str!("scripts/head.lua"),
                $(include_str!($alone),)?
                include_str!("scripts/queue.lua"),
                $(include_str!($file)),+
            );
            Script::new(source, ExtraValue::$extra)
        });
    };
}

script!(
    ACQUIRE,
    shortcut "scripts/acquire_free.lua",
    alone "scripts/grant_alone.lua",
    "scripts/contend.lua",
    Rights,
    "One step towards holding a claim, which expects a free lock."
);
script!(
    CONTEND,
    alone "scripts/grant_alone.lua",
    "scripts/contend.lua",
    Epoch,
    "One step towards holding a claim."
);
script!(RENEW, "scripts/renew.lua", None, "Extends a batch of claims.");
script!(RELEASE, shortcut "scripts/release_single.lua", "scripts/release.lua", None, "Ends one claim.");
script!(GLANCE, "scripts/glance.lua", None, "Keeps the places of a batch of waiting claims.");
script!(INSPECT, "scripts/inspect.lua", None, "Looks at one resource.");
script!(COUNT, "scripts/count.lua", None, "Counts the claims of a batch of resources.");
script!(SWEEP, "scripts/sweep.lua", Epoch, "Removes the fences of a batch of resources.");
script!(READ_REGISTER, "scripts/register.lua" "scripts/read_register.lua", None, "Reads a register.");
script!(SWAP_REGISTER, "scripts/register.lua" "scripts/swap_register.lua", None, "Writes a register on a condition.");

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::{
        CALL_GRACE, CHALLENGE_AFTER, MAX_QUEUE, PROBE_AFTER, PROBED_PER_SILENT, SILENT_AFTER,
    };

    use super::*;
    use crate::topology::server_info::MAX_TTL;

    /// Returns the number that the scripts give to a local variable.
    fn number_in_lua(name: &str) -> u128 {
        let mut lines = CONTEND.source.lines();
        let assigned = lines.find_map(|line| line.strip_prefix(&format!("local {name} = ")));
        assigned.unwrap_or_else(|| panic!("the scripts have no {name}")).parse().unwrap()
    }

    #[test]
    fn numbers_of_the_admission_rule_are_the_same_in_lua() {
        let same = |name, number: u128| assert_eq!(number_in_lua(name), number, "{name} of the scripts");
        let same_time = |name, time: Duration| same(name, time.as_millis());
        same_time("CALL_GRACE", CALL_GRACE);
        same_time("PROBE_AFTER", PROBE_AFTER);
        same_time("SILENT_AFTER", SILENT_AFTER);
        same_time("CHALLENGE_AFTER", CHALLENGE_AFTER);
        same("PROBED_PER_SILENT", PROBED_PER_SILENT as u128);
        same("MAX_QUEUE", MAX_QUEUE as u128);
    }

    #[test]
    fn longest_lease_is_the_same_in_lua() {
        assert_eq!(number_in_lua("MAX_TTL"), MAX_TTL.as_millis());
    }

    #[test]
    fn every_script_has_a_name_of_its_own() {
        let all = [
            &ACQUIRE,
            &CONTEND,
            &RENEW,
            &RELEASE,
            &GLANCE,
            &INSPECT,
            &COUNT,
            &SWEEP,
            &READ_REGISTER,
            &SWAP_REGISTER,
        ];
        let mut names = all.map(|script| script.sha.clone());
        names.sort();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1] && pair[0].len() == 40));
    }
}
