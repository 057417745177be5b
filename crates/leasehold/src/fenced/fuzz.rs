//! A fuzz target: the fence in the header of a request, which any client may send.

use leasehold_core::Fence;
use leasehold_fuzz::Target;

use super::{FenceGate, header};

#[test]
fn header() {
    let fences = [Fence::new(0, 34, 0), Fence::new(3, u64::MAX, 0), Fence::new(0, 9, 9)];
    let seeds = fences.map(|fence| header::value(fence).unwrap());
    let words = [" ", "\t", ".", "e", "0", "+", "\u{a0}", "\r\n", ","];
    Target::new("header", env!("CARGO_MANIFEST_DIR")).seeds(seeds).words(&words).run(|input| {
        let gate = FenceGate::new(());
        match header::parse(Some(input)) {
            Ok(fence) => {
                let written = header::value(fence).unwrap();
                let sent = String::from_utf8_lossy(input);
                // Spaces around a value are not part of it, and nothing else is left out.
                assert_eq!(written, sent.trim_matches([' ', '\t']), "written otherwise than it was read");
                assert!(header::open(&gate, Some(input)).is_ok());
                format!("{} spaces, {:?}", (sent.len() - written.len()).min(2), written.len())
            }
            Err(refusal) => {
                assert_eq!(refusal.status(), 400, "{refusal}");
                assert_eq!(header::open(&gate, Some(input)).unwrap_err(), refusal);
                // An answer to a client has nothing of its bytes.
                assert!(refusal.to_string().starts_with(&format!("the header {} does not", header::NAME)));
                "refused".to_owned()
            }
        }
    });
}
