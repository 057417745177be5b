//! A register for the fuzz targets of stored states, and the properties of every refusal.

use std::sync::OnceLock;

use leasehold_core::Resource;

use crate::engine::Register;
use crate::error::{Error, ErrorKind};

/// Returns a register of a store in memory, which errors name.
pub(super) fn register() -> &'static Register {
    static REGISTER: OnceLock<Register> = OnceLock::new();
    REGISTER.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(crate::Client::open("mem:")).unwrap();
        Register::open(client.engine(), Resource::new("here").unwrap(), "read").unwrap()
    })
}

/// Checks the error for bytes that are no `what`: it names them, and has nothing of them.
pub(super) fn check_refusal(error: &Error, what: &str) {
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.contains(&format!("is not a {what} ")) && text.contains("here"), "{text}");
    assert!(!text.chars().any(char::is_control) && text.len() < 300, "it has the bytes: {text}");
}
