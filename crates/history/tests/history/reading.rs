//! Reading of histories: every text gives a history or an error with its line.

use leasehold_history::{Checker, Event, Format, History, Operation, Stage, Timeline};
use proptest::prelude::*;

use crate::story::Story;

fn error_of(text: &str) -> String {
    History::read(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_history_reads_back() {
    let history = Story::new().held(10, 20, 1, "a \"b\" é", 5).fault(30, "kill", Stage::Info, &[1]).history();
    assert_eq!(History::read(history.to_text().as_bytes()).unwrap(), history);
}

#[test]
fn an_error_has_the_line_and_what_is_wrong() {
    let good = r#"{"i":0,"t":5,"p":1,"type":"invoke","f":"acquire","key":"job"}"#;
    for (bad, expected) in [
        ("{", "line 2"),
        ("[]", "line 2"),
        (r#"{"i":1,"t":5,"type":"maybe","f":"acquire"}"#, "unknown variant `maybe`"),
        (r#"{"i":1,"t":5,"type":"ok","f":"acquire","q":1}"#, "unknown field `q`"),
        (r#"{"i":1,"t":5,"type":"ok","f":"acquire","v":{"mode":"permits 3/2"}}"#, "permits 2/5"),
        (r#"{"i":1,"t":-5,"type":"ok","f":"acquire"}"#, "line 2"),
        (r#"{"i":0,"t":5,"p":2,"type":"invoke","f":"acquire"}"#, "does not rise"),
        (r#"{"i":1,"t":5,"p":1,"type":"invoke","f":"read"}"#, "while its acquire is open"),
        (r#"{"i":1,"t":5,"p":1,"type":"ok","f":"read"}"#, "completes read, which it has not begun"),
        (r#"{"i":1,"t":5,"p":1,"type":"ok","f":"acquire","key":"b"}"#, "with another \"key\""),
        (r#"{"i":1,"t":5,"p":1,"type":"info","f":"acquire"}"#, "with another \"key\""),
    ] {
        let error = error_of(&format!("{good}\n{bad}\n"));
        assert!(error.contains("line 2") && error.contains(expected), "{bad}: {error}");
    }
    let unknown = r#"{"i":1,"t":5,"p":1,"type":"info","f":"acquire","key":"job"}
{"i":2,"t":5,"p":1,"type":"invoke","f":"acquire"}"#;
    let error = error_of(&format!("{good}\n{unknown}\n"));
    assert!(error.contains("line 3") && error.contains("give it a new number"), "{error}");
    let killed = r#"{"i":1,"t":6,"type":"info","f":"fault","v":{"label":"kill worker 0","target":[1]}}"#;
    for again in [r#""type":"ok","f":"acquire","key":"job""#, r#""type":"ok","f":"lost","key":"job""#] {
        let error = error_of(&format!("{good}\n{killed}\n{{\"i\":2,\"t\":9,\"p\":1,{again}}}"));
        assert!(error.contains("line 3") && error.contains("after it was killed"), "{error}");
        let other = format!("{good}\n{}\n{{\"i\":2,\"t\":9,\"p\":1,{again}}}", killed.replace("[1]", "[2]"));
        assert!(History::read(other.as_bytes()).is_ok());
    }
    let bytes = [good.as_bytes(), b"\n\xff\xfe\n"].concat();
    assert_eq!(History::read(bytes.as_slice()).unwrap_err().line, 2);
}

#[test]
fn empty_lines_and_an_empty_history_are_fine() {
    let history = History::read("\n\n".as_bytes()).unwrap();
    let verdict = Checker::new().check(&history);
    assert!(verdict.is_clean() && !verdict.unjudged.is_empty(), "nothing is judged, and that is said");
}

fn events() -> impl Strategy<Value = Vec<String>> {
    let time = prop_oneof![0..40u64, Just(u64::MAX)];
    let stage = prop::sample::select(vec!["invoke", "ok", "fail", "info"]);
    let operation = prop::sample::select(vec![
        "acquire",
        "renew",
        "release",
        "lost",
        "read",
        "write",
        "served-read",
        "served-write",
        "fault",
        "residue",
        "plan",
        "drain",
    ]);
    let one = (time.clone(), prop::option::of(0..3u64), stage, operation, 0..3u8, time, any::<bool>()).prop_map(
        |(at, process, stage, operation, owner, until, names)| {
            let process = process.map(|process| format!(r#""p":{process},"#)).unwrap_or_default();
            let label = if names { r#","label":"pause","target":[1]"# } else { r#","limit":3"# };
            format!(
                r#""t":{at},{process}"type":"{stage}","f":"{operation}","key":"k","v":{{"owner":"o{owner}","fence":[0,{owner},0],"valid_until":{until},"val":{owner}{label}}}}}"#
            )
        },
    );
    proptest::collection::vec(one, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn no_history_makes_the_checker_panic(lines in events()) {
        let events: Vec<Event> = (0..)
            .zip(&lines)
            .map(|(index, line)| serde_json::from_str(&format!(r#"{{"i":{index},{line}"#)).unwrap())
            .collect();
        // It need not be well formed: a history that is built by hand is not checked.
        let history = History::new(events);
        let mut checker = Checker::new();
        (checker.is_ordered, checker.clients) = (true, vec![vec![0], vec![1, 2]]);
        let verdict = checker.check(&history);
        for format in Format::ALL {
            prop_assert!(history.export(*format, None).is_ascii());
        }
        prop_assert!(Timeline::new("t").svg(&history, &verdict).ends_with("</svg>\n"));
        if history.validate().is_ok() {
            prop_assert_eq!(History::read(history.to_text().as_bytes()).unwrap(), history);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[\\[\\]{}\":,a-z0-9 \\n]{0,200}") {
        let _ = History::read(text.as_bytes());
    }
}

#[test]
fn words_of_operations_are_those_of_their_json() {
    for operation in [Operation::Acquire, Operation::ServedRead, Operation::ServedWrite, Operation::Plan] {
        assert_eq!(serde_json::to_string(&operation).unwrap(), format!("\"{}\"", operation.word()));
    }
    assert_eq!(serde_json::to_string(&Stage::Info).unwrap(), format!("\"{}\"", Stage::Info.word()));
}
