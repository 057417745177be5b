//! The scripts of one member of a quorum.

use std::sync::LazyLock;

use crate::protocol::scripts::{ExtraValue, Script};

macro_rules! script {
    // The common part is left out where the script needs nothing of it: it costs as much as some commands.
    ($name:ident, $extra:ident, $($file:literal)+) => {
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!($(include_str!($file)),+), ExtraValue::$extra)
        });
    };
}

script!(
    ASK,
    Run,
    "../scripts/node/ask_free.lua"
    "../scripts/node/node.lua"
    "../scripts/node/ask.lua"
);
script!(WRITE, Run, "../scripts/node/node.lua" "../scripts/node/write.lua");
script!(RENEW, None, "../scripts/node/renew.lua");
script!(SEED, None, "../scripts/node/node.lua" "../scripts/node/seed.lua");
script!(RELEASE, None, "../scripts/node/release.lua");
script!(RECALL, Run, "../scripts/node/node.lua" "../scripts/node/recall.lua");
script!(MARK, Run, "../scripts/node/node.lua" "../scripts/node/mark.lua");
script!(LOOK, None, "../scripts/node/node.lua" "../scripts/node/look.lua");
script!(HOLDERS, None, "../scripts/node/holders.lua");
