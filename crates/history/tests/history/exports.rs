//! Reference forms of the exports and of the picture.

use leasehold_history::{Checker, Format, History, Stage, Timeline};

use crate::story::Story;

/// One lock that is lost under a pause, one acquisition without an answer, and a refused write.
fn story() -> Story {
    Story::new()
        .ask_for(10, 1, 500)
        .got(20, 1, "a", 5, 1_000)
        .increment(30, 1, "a", 5, 0)
        .fault(50, "pause worker 0", Stage::Invoke, &[1])
        .ask_for(60, 2, 500)
        .no_answer(560, 2)
        .ask_for(600, 3, 900)
        .got(1_010, 3, "c", 6, 2_000)
        .increment(1_020, 3, "c", 6, 1)
        .fault(1_100, "pause worker 0", Stage::Ok, &[1])
        .lost(1_101, 1, "a", "the lease ran out before a renewal was confirmed")
        .write(1_110, 1, "a", 5, 2)
        .wrote(1_111, 1, "a", 5, 2, Stage::Fail)
        .release(1_120, 1, "a")
        .not_released(1_121, 1, "a", "the lock was lost")
        .release(1_130, 3, "c")
        .released(1_131, 3, "c")
}

fn check(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

#[test]
fn exports_have_the_form_of_other_checkers() {
    story().is_clean();
    let history = story().history();
    for format in Format::ALL {
        check(format.suffix(), &history.export(*format, Some("job")));
    }
}

#[test]
fn a_plain_mutex_explains_the_export_for_it() {
    // A process is over after an unknown outcome, and the lock is free before it is granted again.
    let text = story().history().export(Format::EdnMutex, None);
    let mut holder: Option<&str> = None;
    let mut free_again = false;
    for line in text.lines() {
        let field = |name: &str| line.split(name).nth(1).unwrap().split([',', '}']).next().unwrap().trim();
        let process = field(":process");
        match (field(":type"), field(":f")) {
            (":ok", ":acquire") => {
                assert!(holder.is_none() || free_again, "{line}\n{text}");
                (holder, free_again) = (Some(process), false);
            }
            // The end of a lease is a release by a process that does nothing else.
            (":invoke", ":release") => free_again |= holder.is_some(),
            _ => {}
        }
    }
}

/// Returns the processes and stages of the lines of an export, in their order.
fn order(history: &History, format: Format) -> String {
    let text = history.export(format, Some("job"));
    let turn = |line: &str| {
        let (before, rest) = line.split_once([':', '-']).unwrap();
        let words: Vec<&str> = rest.split([' ', '\t', ',']).filter(|word| !word.is_empty()).collect();
        let of_log = |at: usize| words[at].trim_start_matches(':').to_owned();
        if before == "{" {
            format!("{}{}", words[1], of_log(3))
        } else {
            format!("{}{}", words[0], of_log(1))
        }
    };
    text.lines().map(turn).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_export_is_in_the_order_of_time_and_not_of_the_recorder() {
    // The recorder hears of the write after the answer of the read that saw it.
    let text = r#"{"i":0,"t":10,"w":2,"p":2,"type":"invoke","f":"read","key":"job"}
{"i":1,"t":20,"w":9,"p":2,"type":"ok","f":"read","key":"job","v":{"val":1}}
{"i":2,"t":21,"w":1,"p":1,"type":"invoke","f":"write","key":"job","v":{"val":1}}
{"i":3,"t":22,"w":8,"p":1,"type":"ok","f":"write","key":"job","v":{"val":1}}"#;
    let history = History::read(text.as_bytes()).unwrap();
    assert!(Checker::new().check(&history).is_clean());
    for format in [Format::Edn, Format::JepsenLog] {
        assert_eq!(order(&history, format), "1invoke 2invoke 1ok 2ok", "{format:?}");
    }
}

#[test]
fn a_process_does_one_thing_at_a_time_in_each_export() {
    // A coarse clock: the first read ends when the second one begins; and then it goes back.
    let text = r#"{"i":0,"t":5,"p":1,"type":"invoke","f":"read","key":"job"}
{"i":1,"t":7,"p":1,"type":"ok","f":"read","key":"job","v":{"val":0}}
{"i":2,"t":7,"p":1,"type":"invoke","f":"read","key":"job"}
{"i":3,"t":7,"p":2,"type":"invoke","f":"read","key":"job"}
{"i":4,"t":6,"p":1,"type":"ok","f":"read","key":"job","v":{"val":0}}"#;
    let history = History::read(text.as_bytes()).unwrap();
    assert!(Checker::new().check(&history).is_clean(), "a clock that goes back breaks nothing");
    for format in [Format::Edn, Format::JepsenLog] {
        assert_eq!(order(&history, format), "1invoke 2invoke 1ok 1invoke 1ok", "{format:?}");
    }
}

#[test]
fn release_at_the_time_of_a_grant_comes_first_in_the_mutex() {
    let text = r#"{"i":0,"t":1,"p":1,"type":"invoke","f":"acquire","key":"job","v":{"mode":"exclusive"}}
{"i":1,"t":2,"p":1,"type":"ok","f":"acquire","key":"job","v":{"owner":"a","fence":[0,1,0],"valid_until":90}}
{"i":2,"t":3,"p":2,"type":"invoke","f":"acquire","key":"job","v":{"mode":"exclusive"}}
{"i":3,"t":20,"p":2,"type":"ok","f":"acquire","key":"job","v":{"owner":"b","fence":[0,2,0],"valid_until":90}}
{"i":4,"t":20,"p":1,"type":"invoke","f":"release","key":"job","v":{"owner":"a","fence":[0,1,0]}}
{"i":5,"t":21,"p":1,"type":"ok","f":"release","key":"job","v":{"owner":"a","fence":[0,1,0]}}"#;
    let history = History::read(text.as_bytes()).unwrap();
    let export = history.export(Format::EdnMutex, Some("job"));
    let release = export.find(":type :invoke, :f :release").unwrap();
    let second = export.match_indices(":type :ok, :f :acquire").nth(1).unwrap().0;
    assert!(release < second, "{export}");
}

#[test]
fn an_export_that_cannot_be_written_is_an_error() {
    let history = story().history();
    for format in Format::ALL {
        let mut space = [0; 100];
        let error = history.exporter().write(*format, Some("job"), space.as_mut_slice()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WriteZero, "{format:?}");
    }
}

#[test]
fn picture_of_a_history() {
    let (history, verdict) = (story().history(), story().verdict());
    let picture = Timeline::new("a <test> & more").svg(&history, &verdict);
    check("timeline", &picture);
    assert!(picture.contains("prefers-color-scheme:dark") && !picture.contains("<script"));
    assert!(picture.contains("a &lt;test&gt; &amp; more"));
}

#[test]
fn a_picture_stays_small() {
    let mut story = Story::new();
    for turn in 0..20_000 {
        story = story.held(turn * 10 + 10, turn * 10 + 15, turn % 8, "a", turn + 1);
    }
    let history = story.history();
    let picture = Timeline::new("long").svg(&history, &Default::default());
    assert!(picture.len() < 1_000_000, "{} bytes for 20,000 grants", picture.len());
}

#[test]
fn a_violation_is_marked() {
    let story = Story::new().ask(0, 1).got(1, 1, "a", 5, 1_000).held(100, 110, 2, "b", 6);
    let story = story.release(300, 1, "a").released(301, 1, "a");
    let picture = Timeline::new("two").svg(&story.history(), &story.verdict());
    assert!(picture.contains("class=\"violation\""), "{picture}");
}
