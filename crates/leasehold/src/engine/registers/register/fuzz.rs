//! A fuzz target: the frame of a value in a register, which another program may have written.

use leasehold_core::{FailureKind, Registered, Stamp};
use leasehold_fuzz::Target;

use super::{framed, unframed};

#[test]
fn register_frame() {
    let marks = [[1; 8], [255; 8], [3; 8]];
    let seeds =
        [framed(b"value", [9; 8], &[]), framed(b"", [9; 8], &marks), framed(b"x", [9; 8], &[[0; 8]; 40])];
    let words = ["\0", "\x01", "\x10", "\x11", "\x01\0\0\0\0\0\0\0\0"];
    Target::new("register_frame", env!("CARGO_MANIFEST_DIR")).seeds(seeds).words(&words).run(|input| {
        let found = Registered { value: Some(input.to_vec()), stamp: Stamp::new(""), left: None };
        match unframed(found) {
            Ok(seen) => {
                let value = seen.value.unwrap();
                let written = seen.marks.split_first().map(|(mark, before)| framed(&value, *mark, before));
                assert_eq!(written.as_deref(), Some(input), "written otherwise than it was read");
                format!("a value of {} writers", seen.marks.len())
            }
            Err(failure) => {
                assert_eq!(failure.kind, FailureKind::Foreign);
                assert!(failure.detail().contains("was not written by this library"), "{failure}");
                "refused".to_owned()
            }
        }
    });
}
