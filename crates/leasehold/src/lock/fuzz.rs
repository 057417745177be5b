//! Fuzz targets: tokens of transfers, which travel as text, and the notices about claims in the store.

use std::time::Duration;

use leasehold_core::{ClaimId, Fence, Resource, Share};
use leasehold_fuzz::Target;

use super::control;
use super::transfer::TransferToken;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn transfer_token() {
    let token = TransferToken {
        resource: Resource::new("a:b ü").unwrap(),
        id: ClaimId::from_bytes([1; 16]),
        number: [255; 16],
        share: Share::permits(2, 5).unwrap(),
        fence: Fence::new(3, 42, 1),
        lasts: Duration::from_millis(19_998),
    };
    Target::new("transfer_token", HERE).seed(token.to_string()).words(&[":", "/", "+", "0", "e", "."]).run(
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return "not text" };
            match text.parse::<TransferToken>() {
                Ok(token) => {
                    assert_eq!(token.to_string(), text, "a token is written in one way");
                    assert!(!format!("{token:?}").contains(&token.id.to_hex()), "the secret is shown");
                    "a token"
                }
                Err(error) => {
                    // Half a token is still half a secret.
                    let secret = ClaimId::from_bytes([1; 16]).to_hex();
                    assert!(!error.to_string().contains(&secret), "{error}");
                    "refused"
                }
            }
        },
    );
}

#[test]
fn notices() {
    let seeds = [control::written(&control::samples()), control::written(&[])];
    Target::new("notices", HERE).seeds(seeds).run(|input| match control::read(input) {
        Some(notices) => {
            assert_eq!(control::written(&notices), input, "written otherwise than it was read");
            format!("{} notices", notices.len().min(4))
        }
        None => "refused".to_owned(),
    });
}
