//! Fuzz targets: texts that other clients and other releases write.

use leasehold_fuzz::Target;

use crate::deadlock::{Announced, Tag};
use crate::ledger::checksum;
use crate::{ClaimId, ClaimInfo, Entry, Fence, Ledger, Moment, Note, Resource, Share};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn ledger() -> Ledger {
    let entry = |number: u8, share: Share, granted: Option<Fence>| Entry {
        id: ClaimId::from_bytes([number; 16]),
        share,
        granted,
        until: Moment::from_nanos(17_000_000_000),
        since: if granted.is_some() { Moment::from_nanos(5) } else { Moment::NEVER },
        beats: 3,
        note: Note::new("host 7 50%\n").unwrap(),
    };
    let entries = vec![
        entry(1, Share::permits(2, 5).unwrap(), Some(Fence::new(0, 7, 0))),
        entry(2, Share::READER, Some(Fence::new(3, 8, 1))),
        entry(3, Share::MUTEX, None),
    ];
    Ledger::restore(entries, Fence::new(3, 8, 1))
}

/// Puts the header of a body in front of it, so that the search continues behind the checksum.
fn summed(magic: &str, body: &str) -> String {
    format!("{magic} {} {}\n{body}", body.len(), checksum(body.as_bytes()))
}

/// Compares two texts without their checksums and their last fences, which reading raises above those of claims.
fn same(written: &str, text: &str) {
    let lines = |text: &str| {
        let lines = text.split('\n').enumerate().filter(|(number, _)| *number != 0 && *number != 2);
        lines.map(|(_, line)| line.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(lines(written), lines(text), "read as something that is written otherwise");
}

/// Every text is refused, except exactly what was written.
fn check(text: &str) -> String {
    let moments = Ledger::from_text(text.as_bytes());
    let spans = Ledger::from_span_text(text.as_bytes());
    if let Ok((ledger, head)) = &moments {
        same(&ledger.to_text(head), text);
    }
    if let Ok((ledger, head)) = &spans {
        same(&ledger.to_span_text(head), text);
    }
    assert!(moments.is_err() || spans.is_err(), "one text is read in two forms");
    match (moments, spans) {
        (Ok((ledger, _)), _) | (_, Ok((ledger, _))) => format!("{} claims", ledger.entries().len().min(4)),
        (Err(why), Err(_)) => why.to_string(),
    }
}

#[test]
fn ledger_text() {
    let whole = [ledger().to_text("a head"), ledger().to_span_text(""), Ledger::default().to_text("x")];
    Target::new("ledger", HERE)
        .seeds(whole)
        .words(&["never", "leasehold-spans 1", "%0A"])
        .run(|input| check(&String::from_utf8_lossy(input)));
}

#[test]
fn ledger_body() {
    let bodies = [ledger().to_text("a head"), ledger().to_span_text("")];
    let bodies = bodies.map(|text| text.split_once('\n').unwrap().1.to_owned());
    let words = ["never", " - ", "%0A", "%25", "%0a", "%41", "+", "0", "18446744073709551615", "e"];
    Target::new("ledger_body", HERE).seeds(bodies).words(&words).run(|input| {
        let body = String::from_utf8_lossy(input);
        let forms = ["leasehold-ledger 1", "leasehold-spans 1"].map(|magic| check(&summed(magic, &body)));
        forms.join("; ")
    });
}

#[test]
fn fence() {
    let seeds = [Fence::new(0, 7, 0), Fence::new(1, 2, 3), Fence::new(u64::MAX, u64::MAX, u32::MAX)];
    Target::new("fence", HERE).seeds(seeds.map(|fence| fence.to_string())).words(&["e", ".", "+"]).run(
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return "not text" };
            let Ok(fence) = text.parse::<Fence>() else { return "refused" };
            // Programs compare the text, so it is written in one way only.
            assert_eq!(fence.to_string(), text);
            assert_eq!(Fence::from_bytes(fence.to_bytes()), fence);
            "a fence"
        },
    );
}

#[test]
fn names() {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    let seeds = ["a/b", "é%20", "x%2Fy", "~0123"];
    Target::new("names", HERE).seeds(seeds).words(&["%", "%2f", "%00", "~", "%C3%A9"]).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text" };
        if let Ok(name) = Resource::new(text) {
            let escaped = name.escaped(plain, 200);
            assert!(escaped.len() <= 200);
            if !Resource::is_hashed(&escaped) {
                assert_eq!(Resource::from_escaped(&escaped).as_ref(), Some(&name));
            }
        }
        if let Some(id) = ClaimId::from_hex(text) {
            assert_eq!(id.to_hex(), text, "an id is written in one way");
        }
        let _ = Tag::of_public(text);
        assert!(Note::clipped(text).as_str().len() <= Note::MAX_BYTES);
        if Resource::from_escaped(text).is_some() { "escaped" } else { "other" }
    });
}

#[test]
fn announcement() {
    let id = ClaimId::from_bytes([7; 16]);
    let place = Resource::new("leasehold!waits").unwrap();
    let wait = Announced {
        place: place.clone(),
        id,
        number: 3,
        resource: Resource::new("a job").unwrap(),
        share: Share::permits(2, 5).unwrap(),
        asks: Some(Tag::of(id)),
        holds: vec![Tag::of(id), Tag::of(ClaimId::from_bytes([1; 16]))],
        note: "host 7".to_owned(),
    };
    let bare = Announced { asks: None, holds: Vec::new(), note: String::new(), ..wait.clone() };
    let seeds = [wait.to_note(), bare.to_note()].map(|note| note.as_str().to_owned());
    Target::new("announcement", HERE).seeds(seeds).words(&["waits1", " - ", ",", "/", "+"]).run(|input| {
        let note = Note::clipped(&String::from_utf8_lossy(input));
        let info = ClaimInfo::new(id, Share::MUTEX).note(note);
        let Some(read) = Announced::read(&place, &info) else { return "nothing" };
        let again = ClaimInfo::new(id, Share::MUTEX).note(read.to_note());
        let again = Announced::read(&place, &again);
        // What is too long for a note is clipped at its end.
        assert_eq!(again.map(|it| (it.number, it.resource, it.share, it.asks)), {
            Some((read.number, read.resource, read.share, read.asks))
        });
        "a wait"
    });
}
