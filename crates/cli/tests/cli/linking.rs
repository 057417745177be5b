//! The link of the program: the loader has no pointers to adjust when it starts.

/// `leasehold run` starts the program twice, and adjusting pointers would take most of the time of a start.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu", not(feature = "pie")))]
fn command_is_linked_at_a_fixed_address() {
    use std::io::Read;

    let mut header = [0; 18];
    std::fs::File::open(env!("CARGO_BIN_EXE_leasehold")).unwrap().read_exact(&mut header).unwrap();
    assert_eq!(&header[..4], b"\x7fELF");
    let kind = u16::from_ne_bytes([header[16], header[17]]);
    assert_eq!(kind, ET_EXEC, "it would be 3 for a program that can be loaded at any address");
}

#[cfg(all(target_os = "linux", target_env = "gnu", not(feature = "pie")))]
const ET_EXEC: u16 = 2;
