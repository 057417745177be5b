//! A fuzz target: histories that other programs have recorded, and what they become for other checkers.

use std::time::Duration;

use leasehold_fuzz::Target;

use crate::{Checker, Format, History, ReadError, Timeline};

const LOST: &str = r#"{"i":0,"t":1,"type":"info","f":"plan","v":{"seed":7,"ttl":500,"label":"redis","grade":"strict"}}
{"i":1,"t":9,"w":8,"p":1,"type":"invoke","f":"acquire","key":"job","v":{"mode":"permits 2/5","limit":500}}
{"i":2,"t":19,"w":18,"p":1,"type":"ok","f":"acquire","key":"job","v":{"owner":"a","fence":[0,5,0],"valid_until":90}}
{"i":3,"t":30,"p":1,"type":"invoke","f":"read","key":"job","v":{"owner":"a","fence":[0,5,0]}}
{"i":4,"t":31,"type":"ok","f":"served-read","key":"job","v":{"fence":[0,5,0],"highest":[0,4,0],"val":0}}
{"i":5,"t":32,"p":1,"type":"ok","f":"read","key":"job","v":{"owner":"a","fence":[0,5,0],"val":0}}
{"i":6,"t":33,"type":"invoke","f":"fault","v":{"label":"pause worker 0","target":[1]}}
{"i":7,"t":95,"type":"ok","f":"fault","v":{"label":"pause worker 0","target":[1]}}
{"i":8,"t":96,"p":1,"type":"ok","f":"lost","key":"job","v":{"owner":"a","valid_until":90},"err":"expired"}
{"i":9,"t":97,"p":1,"type":"invoke","f":"write","key":"job","v":{"owner":"a","fence":[0,5,0],"val":1}}
{"i":10,"t":98,"p":1,"type":"fail","f":"write","key":"job","v":{"fence":[0,5,0],"val":1},"err":"refused"}
"#;

const TWO: &str = r#"{"i":3,"t":1,"p":1,"type":"invoke","f":"acquire","key":"a\"\u0007é"}
{"i":4,"t":1,"p":2,"type":"invoke","f":"acquire","key":"a\"\u0007é","v":{"mode":"shared"}}
{"i":5,"t":2,"p":1,"type":"ok","f":"acquire","key":"a\"\u0007é","v":{"owner":"x","count":1,"fence":[3,1,0]}}
{"i":6,"t":2,"p":2,"type":"info","f":"acquire","key":"a\"\u0007é","err":"<zq> \n"}
{"i":7,"t":3,"p":1,"type":"ok","f":"renew","key":"a\"\u0007é","v":{"owner":"x","valid_until":70}}
{"i":8,"t":3,"p":1,"type":"invoke","f":"release","key":"a\"\u0007é","v":{"owner":"x"}}
{"i":9,"t":4,"p":1,"type":"ok","f":"release","key":"a\"\u0007é","v":{"owner":"x","count":0}}
{"i":10,"t":4,"type":"info","f":"fault","v":{"label":"kill worker 1","target":[2]}}
{"i":11,"t":5,"type":"info","f":"drain"}
{"i":12,"t":6,"type":"ok","f":"residue","v":{"label":"claims","count":0}}
"#;

const WORDS: &[&str] = &[
    "\"type\":\"ok\"",
    "\"type\":\"info\"",
    "\"p\":1",
    "\"p\":2",
    "\"w\":0",
    "\"f\":\"read\"",
    "\"f\":\"write\"",
    "\"f\":\"release\"",
    "\"valid_until\":",
    "\"fence\":[0,6,0]",
    "\"target\":[1,2]",
    "\\n",
    "\\u0000",
    "<zq>",
    "permits 1/1",
    "18446744073709551615",
];

#[test]
fn history() {
    Target::new("history", env!("CARGO_MANIFEST_DIR")).cases(5_000).seeds([LOST, TWO]).words(WORDS).run(
        |input| match History::read(input) {
            Ok(history) => judged(&history),
            Err(error) => refused(input, &error),
        },
    );
}

/// An error names a line of the text, and says what is wrong with it.
fn refused(input: &[u8], error: &ReadError) -> String {
    let lines = input.split(|byte| *byte == b'\n').count();
    assert!((1..=lines).contains(&error.line), "{error}");
    let what = error.what.trim_matches(|c: char| !c.is_ascii_alphabetic());
    assert!(!what.is_empty(), "{error}");
    what.split([' ', '`']).take(4).filter(|word| word.bytes().all(|byte| byte.is_ascii_lowercase())).collect()
}

fn judged(history: &History) -> String {
    history.validate().unwrap();
    let text = history.to_text();
    assert_eq!(&History::read(text.as_bytes()).unwrap(), history, "written otherwise than it was read");
    // Everything is too late, so that whatever is judged is found.
    let (recovery, clients) = (Duration::ZERO, vec![vec![0], vec![1, 2]]);
    let checker = Checker { states: 200, recovery, is_ordered: true, clients, ..Checker::new() };
    let verdict = checker.check(history);
    for violation in &verdict.violations {
        let is_here = |index| history.events().iter().any(|event| event.index == index);
        assert!(violation.slice.iter().all(|event| is_here(event.index)), "{violation:?}");
    }
    let picture = Timeline::new("<zq>").svg(history, &verdict);
    assert!(picture.ends_with("</svg>\n") && !picture.contains("<zq>"), "a name is markup");
    for key in history.keys().into_iter().map(Some).chain([None]) {
        spans(&history.export(Format::PorcupineJson, key));
        maps(&history.export(Format::Edn, key));
        turns(&history.export(Format::EdnMutex, key), |line| {
            let field = |name: &str| line.split_once(name).unwrap().1.split([',', '}']).next().unwrap();
            [":process ", ":type ", ":f "].map(|name| field(name).to_owned())
        });
        turns(&history.export(Format::JepsenLog, key), |line| {
            let line = line.strip_prefix("INFO  jepsen.util - ").unwrap();
            let fields: Vec<&str> = line.split('\t').collect();
            assert_eq!(fields.len(), 4, "{line}");
            [0, 1, 2].map(|field| fields[field].to_owned())
        });
    }
    let broken = verdict.violations.iter().map(|violation| violation.invariant.to_string());
    let broken: std::collections::BTreeSet<String> = broken.collect();
    format!("{} events: {broken:?}", history.events().len().min(4))
}

/// Porcupine wants closed spans, none of which ends before it begins.
fn spans(text: &str) {
    let operations: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
    for operation in operations {
        assert!(operation["call"].as_u64().unwrap() <= operation["return"].as_u64().unwrap(), "{operation}");
    }
}

/// Each line is one map of EDN with all brackets and quotes closed, and lines are in the order of time.
fn maps(text: &str) {
    let mut last = 0_u64;
    for (number, line) in text.lines().enumerate() {
        let (mut open, mut is_text, mut is_escaped) = (Vec::new(), false, false);
        for (place, byte) in line.bytes().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if is_text => is_escaped = true,
                b'"' => is_text = !is_text,
                _ if is_text => {}
                b'{' | b'[' => open.push(byte),
                b'}' => assert_eq!(open.pop(), Some(b'{'), "{line}"),
                b']' => assert_eq!(open.pop(), Some(b'['), "{line}"),
                _ => {}
            }
            assert!(!open.is_empty() || place + 1 == line.len(), "{line}");
        }
        assert!(!is_text && line.contains(&format!(":index {number}, :i ")), "{line}");
        let time = line.rsplit_once(":time ").unwrap().1.split(',').next().unwrap().parse().unwrap();
        assert!(last <= time, "{line}");
        last = time;
    }
}

/// A process does one thing at a time: it completes what it has begun, and nothing follows an unknown outcome.
fn turns(text: &str, fields: impl Fn(&str) -> [String; 3]) {
    let mut open: std::collections::HashMap<String, Option<String>> = Default::default();
    for line in text.lines() {
        let [process, stage, operation] = fields(line);
        if operation == ":lost" {
            continue;
        }
        let begun = open.remove(&process);
        match stage.as_str() {
            ":invoke" => {
                assert_eq!(begun, None, "{line}\n{text}");
                open.insert(process, Some(operation));
            }
            ":info" => {
                assert_eq!(begun, Some(Some(operation)), "{line}\n{text}");
                open.insert(process, None);
            }
            _ => assert_eq!(begun, Some(Some(operation)), "{line}\n{text}"),
        }
    }
}
