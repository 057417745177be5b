//! The scripts of one member of a quorum.

use std::sync::LazyLock;

use crate::protocol::scripts::{Script, Stamp};

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            let source = concat!(include_str!("../scripts/node/node.lua"), include_str!($file));
            Script::new(source, Stamp::None)
        });
    };
}

script!(ASK, "../scripts/node/ask.lua");
script!(WRITE, "../scripts/node/write.lua");
script!(RENEW, "../scripts/node/renew.lua");
script!(SEED, "../scripts/node/seed.lua");
script!(RELEASE, "../scripts/node/release.lua");
script!(RECALL, "../scripts/node/recall.lua");
script!(MARK, "../scripts/node/mark.lua");
script!(LOOK, "../scripts/node/look.lua");
script!(HOLDERS, "../scripts/node/holders.lua");
