//! Fuzz targets: the configuration file, what other programs put into variables and pipes, and what is shown of it.

use std::path::Path;

use leasehold_fuzz::Target;

use crate::output::redact::{redacted, redacted_url};
use crate::output::text::{clipped, visible};
use crate::process::keeper_lines::{Report, Request};
use crate::request::args::duration;
use crate::request::config;
use crate::request::keepers::Keepers;
use crate::request::reentry::Tags;
use crate::system::processes::{Identity, Process};
use crate::system::signals::ignored_in;
use crate::system::warden::Message;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const PASSWORD: &str = "s3cretword";
const TAG: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn configuration() {
    let seeds = [
        "# stores\n[stores.prod]\nurl = \"redis://me:s3cretword@h:1/0?db=1\"\n",
        "[stores.a-b]\nurl = \"redis://h?x=1\"\npassword-file = \"/a b/ü\"\n[stores.c]\nurl = 'file:'\n",
        "[stores]\nprod = \"redis://:s3cretword@h\"\n",
        "[stores.prod]\nurl = \"redis://h\"\npassword = \"s3cretword\"\n",
        "[stores.prod]\nurl = \"\"\"redis://u:s3cretword@h\"\"\"\n\"s3cretword\" = 1\n",
    ];
    let words = [
        "[stores.",
        "url = ",
        "password-file = ",
        "s3cretword",
        "\"s3cretword\"",
        "'",
        "\"\"\"",
        "\\u0073",
        " = ",
        "12",
        "1979-05-27",
        "{ url = ",
        "[[stores]]",
        "\n",
        "#",
        "stores.x.url = \"redis://:s3cretword@h\"\n",
    ];
    Target::new("configuration", HERE).seeds(seeds).words(&words).run(|input| {
        let path = Path::new("/etc/leasehold/config.toml");
        let lines = input.split(|byte| *byte == b'\n').count();
        let stores = match config::read_text(input, path) {
            Ok(stores) => stores,
            Err(problem) => {
                let text = problem.to_string();
                assert!(!text.contains(PASSWORD), "an error repeats a password: {text}");
                assert!(!text.chars().any(char::is_control), "{text:?}");
                let line = text.strip_prefix("/etc/leasehold/config.toml, line ").unwrap();
                let (line, what) = line.split_once(": ").unwrap();
                assert!((1..=lines).contains(&line.parse().unwrap()) && !what.is_empty(), "{text}");
                return what.split(['`', '"', '\'']).next().unwrap_or_default().to_owned();
            }
        };
        let mut kinds = Vec::new();
        for (name, url) in stores.urls(path) {
            match url {
                Ok(url) => {
                    assert!(url.contains(':'), "{name:?} is not a URL: {url}");
                    kinds.push("url");
                }
                Err(problem) => {
                    let text = problem.to_string();
                    let is_name = name.contains(PASSWORD);
                    assert!(is_name || !text.contains(PASSWORD), "an error repeats a password: {text}");
                    kinds.push("refused");
                }
            }
        }
        kinds.truncate(3);
        kinds.join(",")
    });
}

/// A password of a URL is never shown, whatever is around the URL.
#[test]
fn passwords() {
    let seeds = [
        "error: 'redis://me:s3cretword@h:1/0' is bad",
        "x://:s3cretword@h?password=s3cretword&db=1 and \"y://a@b\"",
        "redis+unix:///s?pass=s3cretword",
    ];
    let words =
        ["://", "://me:s3cretword@h", "?password=s3cretword", "&", "@", ":", "'", "\"", "`", " ", "«", "?"];
    Target::new("passwords", HERE).seeds(seeds).words(&words).run(|input| {
        let text = String::from_utf8_lossy(input);
        let shown = redacted(&text);
        let whole = ["://me:s3cretword@h", "://:s3cretword@h"];
        let is_password = text.matches(PASSWORD).count() == 1 && whole.iter().any(|url| text.contains(url));
        assert!(!is_password || !shown.contains(PASSWORD), "{shown}");
        let own = redacted_url(&text);
        assert!(!is_password || !own.contains(PASSWORD), "{own}");
        assert_eq!(redacted(&shown), shown, "what is masked stays as it is");
        let (seen, short) = (visible(&text), clipped(&text, 20));
        assert!(!seen.chars().any(char::is_control) && short.chars().count() <= 20, "{seen}");
        match (shown == text, is_password) {
            (true, _) => "nothing to mask",
            (false, true) => "the password",
            (false, false) => "something",
        }
    });
}

/// The variables of a script say which keepers there are, in texts that are good in a shell.
#[test]
fn keepers() {
    let place = format!("{TAG}-0-4026531840");
    let seeds = [format!("{place}.7.6:{TAG}:{TAG}=a%2Fb+c,{place}=x"), format!("{TAG},{TAG}")];
    let words = ["-", ".", ":", "=", ",", "+", "%", "%00", TAG, "0x"];
    Target::new("keepers", HERE).seeds(seeds).words(&words).run(|input| {
        let text = String::from_utf8_lossy(input);
        let keepers = Keepers::read(&text);
        let written = keepers.to_string();
        assert!(!written.contains(['\'', '"', ' ', '$', '`', '\\', ';', '&', '\n']), "{written}");
        assert_eq!(Keepers::read(&written), keepers);
        let tags = Tags::read(&text);
        let passed_on = tags.with(None);
        assert!(passed_on.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b','), "{passed_on}");
        assert_eq!(Tags::read(&passed_on), tags);
        format!("{} keepers, {} tags", keepers.all().len(), passed_on.split(',').count().min(3))
    });
}

/// The lines between a keeper, those that follow it, and a warden.
#[test]
fn lines() {
    let follow = format!("follow {TAG} 7.8 9.10");
    let seeds = [
        "release",
        &follow,
        "held",
        "until 7",
        "lost it was broken",
        "wait",
        "until 7 5000",
        "command 12",
        "done",
    ];
    Target::new("lines", HERE).seeds(seeds).words(&[" ", ".", "follow ", "until ", "lost ", "-1", "\n"]).run(
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
            let request = Request::read(text);
            if let Some(request) = &request {
                let again = request.line();
                assert!(again.ends_with('\n') && again.len() <= text.len() + 1, "{again:?}");
                assert!(Request::read(again.trim_end_matches('\n')).is_some(), "{again:?}");
            }
            let report = Report::read(text);
            if let Some(report) = &report {
                let again = report.line();
                assert_eq!(again.matches('\n').count(), 1, "{again:?}");
                assert!(Report::read(again.trim_end_matches('\n')).is_some(), "{again:?}");
            }
            let message = Message::read(text);
            if let Some(message) = message {
                assert_eq!(Message::read(message.line().trim_end()), Some(message));
            }
            format!("{} {} {}", request.is_some(), report.is_some(), message.is_some())
        },
    );
}

/// The lines of the kernel about processes, whose names are chosen by anybody.
#[test]
fn processes() {
    let seeds = [
        "12 (a) S 1) Z 7 9 9 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 345 99 1 2 3 4 77 6 7\n",
        "1 (x) S 0 0 0",
        "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t00\n",
        "12.345",
    ];
    let words = [") ", " (", "-1", " 0", "SigIgn:\t", ".", "2147483647"];
    Target::new("processes", HERE).seeds(seeds).words(&words).run(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return "not text".to_owned() };
        let _ = ignored_in(text);
        if let Ok(identity) = text.parse::<Identity>() {
            assert_eq!(identity.to_string().parse(), Ok(identity));
            return "identity".to_owned();
        }
        let Some(process) = Process::read(text) else { return "refused".to_owned() };
        assert!(process.pid.as_raw_pid() > 0);
        assert_eq!(process.identity().to_string().parse(), Ok(process.identity()));
        format!("{} {}", process.parent.is_some(), process.is_over)
    });
}

/// A duration is what it is written as again, and an error says how to write one.
#[test]
fn durations() {
    let seeds = ["30s", "1h30m", "500ms", "1y 2months 3days"];
    Target::new("durations", HERE).seeds(seeds).words(&["s", "ms", "h", " ", ".", "ns", "years", "-"]).run(
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return "not text" };
            match duration(text) {
                Ok(time) => {
                    assert_eq!(duration(&humantime::format_duration(time).to_string()), Ok(time));
                    "a duration"
                }
                Err(error) => {
                    assert!(error.ends_with("write it like 30s, 500ms or 1h30m"), "{error}");
                    "refused"
                }
            }
        },
    );
}
