//! Compiles the engine as a simulation sees it.

fn main() {
    println!("cargo::rustc-cfg=leasehold_sim");
    println!("cargo::rerun-if-changed=build.rs");
}
