//! Every event as an EDN map.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::Exporter;
use crate::event::{Event, FenceValue, Values};

pub(super) fn all(exporter: &Exporter<'_>, key: Option<&str>, out: &mut impl Write) -> io::Result<()> {
    let is_wanted = |event: &Event| key.is_none() || event.key.is_none() || event.key.as_deref() == key;
    let wanted = exporter.events.iter().filter(|placed| is_wanted(placed.event));
    for (index, placed) in wanted.enumerate() {
        let event = placed.event;
        let process = event.process.map_or(":nemesis".to_owned(), |process| process.to_string());
        write!(out, "{{:process {process}, :type :{}, ", event.stage.word())?;
        write!(out, ":f :{}, :value {}", event.operation.word(), value(event))?;
        write!(out, ", :time {}, :index {index}, :i {}", placed.time, event.index)?;
        if let Some(error) = &event.error {
            write!(out, ", :error {}", text(error))?;
        }
        out.write_all(b"}\n")?;
    }
    Ok(())
}

fn value(event: &Event) -> String {
    let values = &event.values;
    let mut parts: Vec<String> = Vec::new();
    let mut part = |name: &str, value: Option<String>| {
        parts.extend(value.map(|value| format!(":{name} {value}")));
    };
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    let fence = |fence: Option<FenceValue>| {
        fence.map(|fence| format!("[{} {} {}]", fence.epoch, fence.seq, fence.sub))
    };
    let Values {
        owner, mode, highest, valid_until, count, val, limit, ttl, seed, grade, label, target, ..
    } = values;
    part("key", event.key.as_deref().map(text));
    part("client", owner.as_deref().map(text));
    part("mode", mode.map(|mode| text(&mode.to_string())));
    part("fence", fence(values.fence));
    part("highest", fence(*highest));
    part("valid-until", number(*valid_until));
    part("count", number(*count));
    part("val", number(*val));
    part("limit", number(*limit));
    part("ttl", number(*ttl));
    part("seed", number(*seed));
    part("grade", grade.as_deref().map(text));
    part("label", label.as_deref().map(text));
    let targets: Vec<String> = target.iter().map(u64::to_string).collect();
    part("target", (!targets.is_empty()).then(|| format!("[{}]", targets.join(" "))));
    match parts.is_empty() {
        true => "nil".to_owned(),
        false => format!("{{{}}}", parts.join(" ")),
    }
}

/// Returns a string of EDN, whose escapes are those of JSON for what names can have.
pub(super) fn text(raw: &str) -> String {
    let mut out = String::from("\"");
    for character in raw.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            _ if character.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}
