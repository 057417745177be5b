//! The example keeps the laws that it is an example of.

#[allow(unreachable_pub, reason = "it is public where it is an example")]
#[path = "../examples/tiny.rs"]
mod tiny;

leasehold_conformance::suite!(tiny::Tiny::default());
