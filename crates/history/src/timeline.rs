//! The timeline of a history as a picture: who relied on which lock, when, and under which faults.
//!
//! Ground rules: the picture is one file without scripts, fonts and links, and readable on light and on dark ground.
//! Its size is bounded for every history: grants that are closer than a pixel are drawn as one.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::event::Mode;
use crate::history::History;
use crate::verdict::{Invariant, Verdict};
use crate::view::{Fault, GrantLife, Stamps, View};

/// A picture of a history.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Timeline {
    /// The title.
    pub title: String,
    /// The width of the time in pixels.
    pub width: u32,
    /// The part of the history that is shown, in nanoseconds of its clock; all of it if absent.
    pub window: Option<(u64, u64)>,
    /// The clock by which it is drawn.
    pub stamps: Stamps,
}

impl Timeline {
    /// Returns a picture of the whole history.
    pub fn new(title: impl Into<String>) -> Timeline {
        Timeline { title: title.into(), width: 1_000, window: None, stamps: Stamps::Own }
    }

    /// Returns the picture as SVG. Violations of the verdict are marked.
    pub fn svg(&self, history: &History, verdict: &Verdict) -> String {
        let view = View::of(history, self.stamps);
        let first = view.events.iter().map(|event| view.times.at(event)).min().unwrap_or(0);
        let (from, until) = self.window.unwrap_or((first, view.end));
        let scale = Scale { from, span: until.saturating_sub(from).max(1), width: f64::from(self.width) };
        let rows = rows(&view, &scale);
        let height = TOP + rows.len() as u32 * ROW + BOTTOM;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" role=\"img\" \
             aria-label=\"{}\">",
            LEFT + self.width + RIGHT,
            escaped(&self.title),
        );
        let _ = writeln!(out, "<title>{}</title>\n<style>{STYLE}</style>", escaped(&self.title));
        let _ = writeln!(out, "<rect class=\"ground\" width=\"100%\" height=\"100%\"/>");
        let _ = writeln!(out, "<text class=\"title\" x=\"8\" y=\"18\">{}</text>", escaped(&self.title));
        legend(&mut out);
        faults(&mut out, &view, &scale, &rows, height);
        axis(&mut out, &scale, height);
        for (place, row) in rows.iter().enumerate() {
            row.draw(&mut out, TOP + place as u32 * ROW);
        }
        marks(&mut out, &scale, verdict, &view, height);
        out.push_str("</svg>\n");
        out
    }
}

/// Places times on the picture.
struct Scale {
    from: u64,
    span: u64,
    width: f64,
}

impl Scale {
    /// Returns the place of a time, at the edge if it is outside.
    fn x(&self, time: u64) -> f64 {
        let part = time.saturating_sub(self.from).min(self.span) as f64 / self.span as f64;
        f64::from(LEFT) + part * self.width
    }

    fn shows(&self, from: u64, until: u64) -> bool {
        until >= self.from && from <= self.from.saturating_add(self.span)
    }
}

/// One process on one lock.
struct Row<'h> {
    /// The name of the lock, on its first row.
    key: Option<&'h str>,
    process: u64,
    bars: Vec<Bar>,
    losses: Vec<f64>,
}

/// Grants that are drawn as one.
struct Bar {
    from: f64,
    until: f64,
    class: &'static str,
    count: usize,
    text: String,
}

fn rows<'h>(view: &View<'h>, scale: &Scale) -> Vec<Row<'h>> {
    let mut rows = Vec::new();
    for (key, grants) in view.grants_by_key() {
        let mut processes: BTreeMap<u64, Vec<&GrantLife>> = BTreeMap::new();
        for grant in grants.into_iter().filter(|grant| scale.shows(grant.from, grant.until)) {
            processes.entry(grant.process).or_default().push(grant);
        }
        let mut key = Some(key);
        for (process, grants) in processes {
            if rows.len() >= MOST_ROWS {
                return rows;
            }
            let mut row = Row { key: key.take(), process, bars: Vec::new(), losses: Vec::new() };
            for grant in grants {
                row.add(view, scale, grant);
            }
            rows.push(row);
        }
    }
    rows
}

impl Row<'_> {
    fn add(&mut self, view: &View<'_>, scale: &Scale, grant: &GrantLife<'_>) {
        let (from, until) = (scale.x(grant.from), scale.x(grant.until));
        let class = match grant.mode {
            _ if grant.lost.is_some() => "lost",
            Mode::Exclusive => "held",
            Mode::Shared | Mode::Permits { .. } => "shared",
        };
        if let Some(lost) = grant.lost {
            let x = scale.x(view.times.at(lost));
            if self.losses.last().is_none_or(|last| x - last >= 1.0) {
                self.losses.push(x);
            }
        }
        match self.bars.last_mut() {
            Some(last) if from - last.until < 0.5 && last.class == class => {
                last.until = until.max(last.until);
                last.count += 1;
                last.text.clear();
            }
            _ => {
                let fence =
                    grant.got.values.fence.map(|fence| format!(", fence {fence}")).unwrap_or_default();
                let text = format!("{}{fence}, {}", grant.name(), shown(grant.until - grant.from));
                self.bars.push(Bar { from, until, class, count: 1, text });
            }
        }
    }

    fn draw(&self, out: &mut String, y: u32) {
        if let Some(key) = self.key {
            let _ = writeln!(out, "<line class=\"rule\" x1=\"8\" x2=\"100%\" y1=\"{y}\" y2=\"{y}\"/>");
            let _ = writeln!(
                out,
                "<text class=\"key\" x=\"8\" y=\"{}\">{}</text>",
                y + 13,
                escaped(shortened(key))
            );
        }
        let label = LEFT - 8;
        let _ =
            writeln!(out, "<text class=\"process\" x=\"{label}\" y=\"{}\">{}</text>", y + 13, self.process);
        for bar in &self.bars {
            let text = match bar.count {
                1 => bar.text.clone(),
                count => format!("{count} grants of process {}", self.process),
            };
            let width = (bar.until - bar.from).max(0.5);
            let _ = writeln!(
                out,
                "<rect class=\"{}\" x=\"{:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"12\"><title>{}</title></rect>",
                bar.class,
                bar.from,
                y + 3,
                escaped(&text),
            );
        }
        for x in &self.losses {
            let _ = writeln!(out, "<path class=\"loss\" d=\"M{x:.1} {} v14\"/>", y + 2);
        }
    }
}

/// Draws each fault behind the rows of the processes that it concerns, or behind all of them.
fn faults(out: &mut String, view: &View<'_>, scale: &Scale, rows: &[Row<'_>], height: u32) {
    let mut drawn = 0;
    let mut last: Option<(f64, &str)> = None;
    for fault in view.faults.iter().filter(|fault| scale.shows(fault.from, fault.until)) {
        let (from, until) = (scale.x(fault.from), scale.x(fault.until));
        let is_same = last.is_some_and(|(x, label)| until - x < 1.0 && label == fault.label);
        if is_same {
            continue;
        }
        last = Some((until, fault.label));
        let hit = (0..).zip(rows).filter(|(_, row)| fault.targets.contains(&row.process));
        let mut places: Vec<(u32, u32)> = hit.map(|(place, _)| (TOP + place * ROW, ROW)).collect();
        if fault.targets.is_empty() {
            places.push((TOP, height - TOP - BOTTOM));
        }
        for (y, tall) in places {
            drawn += 1;
            if drawn > MOST_SPANS {
                return;
            }
            let _ = writeln!(
                out,
                "<rect class=\"fault\" x=\"{from:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{tall}\"><title>{}</title></rect>",
                (until - from).max(2.0),
                escaped(&label_of(fault)),
            );
        }
    }
}

fn label_of(fault: &Fault<'_>) -> String {
    format!("{}, {}", fault.label, shown(fault.until - fault.from))
}

fn axis(out: &mut String, scale: &Scale, height: u32) {
    let y = height - BOTTOM;
    for tick in 0..=TICKS {
        let time = scale.span / TICKS * tick;
        let x = scale.x(scale.from + time);
        let _ =
            writeln!(out, "<line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{}\"/>", y + 4);
        let seconds = time as f64 / 1e9;
        let _ = writeln!(out, "<text class=\"time\" x=\"{x:.1}\" y=\"{}\">{seconds:.2} s</text>", y + 18);
    }
}

/// Marks the times at which two holders overlapped, and other violations.
fn marks(out: &mut String, scale: &Scale, verdict: &Verdict, view: &View<'_>, height: u32) {
    for violation in verdict.violations.iter().take(MOST_MARKS) {
        let is_timing = violation.invariant == Invariant::I4;
        let times = || violation.slice.iter().map(|event| view.times.at(event));
        let at = match is_timing {
            // The last grant of the slice is the one that should not have been.
            true => violation
                .slice
                .iter()
                .filter(|event| event.values.fence.is_some())
                .map(|e| view.times.at(e))
                .max(),
            false => times().max(),
        };
        let Some(at) = at.filter(|at| scale.shows(*at, *at)) else { continue };
        let x = scale.x(at);
        let _ = writeln!(
            out,
            "<path class=\"violation\" d=\"M{x:.1} {TOP} V{}\"><title>{}: {}</title></path>",
            height - BOTTOM,
            violation.invariant,
            escaped(&violation.what),
        );
    }
}

fn legend(out: &mut String) {
    let mut x = LEFT;
    for (class, text) in [
        ("held", "valid, by its holder"),
        ("shared", "shared"),
        ("lost", "ended by a loss"),
        ("fault", "fault"),
        ("mark", "violation"),
    ] {
        let _ = writeln!(out, "<rect class=\"{class}\" x=\"{x}\" y=\"28\" width=\"14\" height=\"10\"/>");
        let _ = writeln!(out, "<text class=\"legend\" x=\"{}\" y=\"37\">{text}</text>", x + 19);
        x += 40 + 7 * u32::try_from(text.len()).unwrap_or(0);
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ if character.is_control() => out.push('\u{fffd}'),
            _ => out.push(character),
        }
    }
    out
}

/// Returns the end of a name that is too long for its place: what follows its last slash, if that fits.
fn shortened(key: &str) -> &str {
    let name = key.rsplit('/').next().unwrap_or(key);
    let key = if key.chars().count() > NAME_LENGTH { name } else { key };
    let over = key.chars().count().saturating_sub(NAME_LENGTH);
    key.char_indices().nth(over).map_or(key, |(from, _)| &key[from..])
}

fn shown(nanos: u64) -> String {
    format!("{:.1?}", std::time::Duration::from_nanos(nanos))
}

const LEFT: u32 = 170;
const RIGHT: u32 = 40;
const TOP: u32 = 48;
const BOTTOM: u32 = 28;
const ROW: u32 = 18;
const TICKS: u64 = 6;
const NAME_LENGTH: usize = 16;
const MOST_ROWS: usize = 400;
const MOST_MARKS: usize = 400;
const MOST_SPANS: usize = 4_000;

/// Without variables, which some programs that draw SVG do not know. Those that know no dark ground draw a light one.
const STYLE: &str = "\
svg{font:12px system-ui,sans-serif}.title,.key{font-weight:600}.process{text-anchor:end}.time{text-anchor:middle}\
.loss{stroke-width:2}.violation{stroke-width:1.5}.fault{opacity:.6}\
.ground{fill:#fff}text{fill:#1d2330}.legend,.time,.process{fill:#66708a}.rule,.tick{stroke:#dfe3ec}\
.held{fill:#2f6fde}.shared{fill:#2b9a74}.lost{fill:#d98a1c}.fault{fill:#b9bfce}.mark{fill:#d02f3f}\
.loss{stroke:#d98a1c}.violation{stroke:#d02f3f}\
@media(prefers-color-scheme:dark){\
.ground{fill:#14171f}text{fill:#e6e9f0}.legend,.time,.process{fill:#98a1b5}.rule,.tick{stroke:#2b303c}\
.held{fill:#6fa1ff}.shared{fill:#58c79f}.lost{fill:#f0b04f}.fault{fill:#565e70}.mark{fill:#ff6b78}\
.loss{stroke:#f0b04f}.violation{stroke:#ff6b78}}";
