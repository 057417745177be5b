//! The scripts of the dialects, as they are sent to the server.

use std::sync::LazyLock;

use crate::protocol::scripts::{ExtraValue, Script};

macro_rules! script {
    ($name:ident, $dialect:literal, $file:literal, $what:literal) => {
        #[doc = $what]
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            let source = concat!(include_str!("common.lua"), include_str!($dialect), include_str!($file));
            Script::new(source, ExtraValue::None)
        });
    };
}

script!(TEXT_CONTEND, "text.lua", "text_contend.lua", "Takes a lock that is a string.");
script!(TEXT_RENEW, "text.lua", "text_renew.lua", "Keeps the lease of a lock that is a string.");
script!(TEXT_RELEASE, "text.lua", "text_release.lua", "Ends a lock that is a string.");
script!(TEXT_INSPECT, "text.lua", "text_inspect.lua", "Looks at a lock that is a string.");

script!(HASH_CONTEND, "redisson.lua", "redisson_contend.lua", "Takes a lock of Redisson's.");
script!(HASH_RENEW, "redisson.lua", "redisson_renew.lua", "Keeps the lease of a lock of Redisson's.");
script!(HASH_RELEASE, "redisson.lua", "redisson_release.lua", "Ends a lock of Redisson's.");
script!(HASH_INSPECT, "redisson.lua", "redisson_inspect.lua", "Looks at a lock of Redisson's.");
