//! Fuzz targets: the files of a store, which other processes and other releases write.

use leasehold_core::{ClaimId, Entry, Fence, Ledger, Moment, Note, Resource, Share};
use leasehold_fuzz::Target;

use super::ledger_file::LedgerFile;
use super::liveness_fifo::FifoName;
use super::{registers, reserve};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const BOOT: &str = "0b00";

fn ledger() -> Ledger {
    let entry = |number: u8, granted| Entry {
        id: ClaimId::from_bytes([number; 16]),
        share: Share::MUTEX,
        granted,
        until: Moment::NEVER,
        since: Moment::START,
        beats: 0,
        note: Note::default(),
    };
    Ledger::restore(vec![entry(1, Some(Fence::new(0, 7, 0))), entry(2, None)], Fence::new(0, 7, 0))
}

/// The head of a ledger, in front of two claims.
#[test]
fn ledger_head() {
    let id = ClaimId::from_bytes([9; 16]).to_hex();
    let seeds = [format!("file 1 3 {BOOT} 1024 9 7,8"), format!("file 1 0 {BOOT} 7 3 1=2={id},2")];
    Target::new("ledger_head", HERE)
        .seeds(seeds)
        .words(&["=", ",", BOOT, "file 1 ", "18446744073709551615"])
        .run(|input| {
            let head = std::str::from_utf8(input).ok().filter(|head| !head.contains('\n'));
            let Some(head) = head else { return "not a line" };
            let Some(read) = LedgerFile::parse(&LedgerFile::slot_of(&ledger().to_text(head)), BOOT) else {
                return "refused";
            };
            // A process that reads it and writes it leaves the same queue.
            let written = LedgerFile::slot_of(&ledger().to_text(&read.head(BOOT)));
            let again = LedgerFile::parse(&written, BOOT).unwrap();
            assert_eq!(again.head(BOOT), read.head(BOOT));
            let names =
                |file: &LedgerFile| file.entries().iter().map(|it| file.name_of(it)).collect::<Vec<_>>();
            assert_eq!(names(&again), names(&read));
            assert!(
                LedgerFile::parse(&written, "another boot").is_none(),
                "a ledger of another boot is read"
            );
            "a ledger"
        });
}

/// Any bytes in the place of a slot.
#[test]
fn ledger_slot() {
    let text = ledger().to_text(&format!("file 1 3 {BOOT} 1024 9 7,8"));
    Target::new("ledger_slot", HERE)
        .seed(LedgerFile::slot_of(&text))
        .words(&["\n", "ffffffff", "00000000"])
        .run(|input| match LedgerFile::parse(input, BOOT) {
            Some(read) => {
                assert_eq!(read.entries().len(), 2, "part of a ledger is read as another one");
                "a ledger"
            }
            None => "refused",
        });
}

/// The names and the small files beside a ledger.
#[test]
fn file_texts() {
    let name = FifoName { place: 7, share: Share::permits(2, 5).unwrap(), id: ClaimId::from_bytes([9; 16]) };
    let resource = Resource::new("a b").unwrap();
    let value = registers::text("07", &resource, b"a\nb");
    let seeds =
        [name.text().into_bytes(), name.revoked().into_bytes(), reserve::text(1024).into_bytes(), value];
    Target::new("file_texts", HERE).seeds(seeds).words(&["-", " ", "\n", "+", ".revoked", "00000000"]).run(
        |input| {
            if let Some(number) = reserve::parse(input) {
                assert_eq!(String::from_utf8_lossy(input).trim_end(), reserve::text(number).trim_end());
                return "a fence";
            }
            if let Some((stamp, at, value)) = registers::read_text(input) {
                if let Ok(at) = Resource::new(at) {
                    assert_eq!(
                        registers::text(stamp, &at, value),
                        input,
                        "written otherwise than it was read"
                    );
                }
                return "a value";
            }
            let Ok(text) = std::str::from_utf8(input) else { return "not text" };
            let Some(name) = FifoName::parse(text) else { return "refused" };
            assert_eq!(FifoName::parse(&name.text()), Some(name));
            assert_eq!(FifoName::parse(&name.revoked()), Some(name));
            "the name of a FIFO"
        },
    );
}
