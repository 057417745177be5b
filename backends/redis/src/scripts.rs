//! The scripts that decide, as they are sent to the server.
//!
//! The server decides everything in these; what is written in Rust only asks and reads. They are constants: names of
//! resources travel in `KEYS`, everything else in `ARGV`.

use std::sync::LazyLock;

/// One script with its name for `EVALSHA`.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: &'static str,
    pub(crate) sha: String,
}

macro_rules! script {
    ($name:ident, $file:literal, $what:literal) => {
        #[doc = $what]
        pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            let source = concat!(include_str!("scripts/line.lua"), include_str!($file));
            Script { source, sha: redis::Script::new(source).get_hash().to_owned() }
        });
    };
}

script!(CONTEND, "scripts/contend.lua", "One step towards holding a claim.");
script!(RENEW, "scripts/renew.lua", "Extends a batch of claims.");
script!(RELEASE, "scripts/release.lua", "Ends one claim.");
script!(GLANCE, "scripts/glance.lua", "Keeps the places of a batch of waiting claims.");
script!(INSPECT, "scripts/inspect.lua", "Looks at one resource.");
script!(COUNT, "scripts/count.lua", "Counts the claims of a batch of resources.");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_has_a_name_of_its_own() {
        let mut names =
            [&CONTEND, &RENEW, &RELEASE, &GLANCE, &INSPECT, &COUNT].map(|script| script.sha.clone());
        names.sort();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1] && pair[0].len() == 40));
    }
}
