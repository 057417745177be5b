//! Links the command at a fixed address, unless the feature `pie` is on.
//!
//! A program that can be loaded at any address has tens of thousands of pointers that the loader adjusts at each
//! start, and each page of them is copied. `leasehold run` starts this program twice.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    let is_wanted = std::env::var_os("CARGO_FEATURE_PIE").is_none();
    if is_wanted && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
