//! The timeline of a lock: which claims held it, as a picture with a lane for each.
//!
//! Ground rules: pure code. Positions along the time are percentages, so that text keeps its size at any
//! width. The same facts are in a table below the picture.

use leasehold::Fence;
use leasehold_monitor::Holding;
use leasehold_monitor::text::visible;
use maud::{Markup, html};

use super::words::{clipped, length, time_of_day};
use std::time::Duration;

/// One lane: a hold, from its grant or from when it was seen first, to its end or to now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lane {
    pub(super) who: String,
    pub(super) begin_ms: u64,
    /// `None` while it holds.
    pub(super) end_ms: Option<u64>,
    pub(super) fence: Option<Fence>,
}

impl Lane {
    pub(super) fn of(holding: &Holding) -> Lane {
        let who = match holding.note.as_str() {
            "" => format!("no note, tag {}", &holding.tag[..8]),
            note => visible(note),
        };
        // The grant by the store's clock; a clock that is ahead must not place it after what was seen.
        let begin = holding.since_unix_ms.unwrap_or(holding.seen_unix_ms).min(holding.seen_unix_ms);
        Lane {
            who,
            begin_ms: begin,
            end_ms: holding.ending.map(|ending| ending.gone_unix_ms),
            fence: holding.fence,
        }
    }

    fn end(&self, now_ms: u64) -> u64 {
        self.end_ms.unwrap_or(now_ms).max(self.begin_ms)
    }

    /// Returns the time for which it held.
    pub(super) fn held(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.end(now_ms) - self.begin_ms)
    }
}

/// Draws the latest lanes, the latest grant on top. `from_ms` is when the lock was watched first.
pub(super) fn draw(lanes: &[Lane], from_ms: u64, now_ms: u64) -> Markup {
    let shown = &lanes[lanes.len().saturating_sub(LANES)..];
    let window = Window::of(shown, from_ms, now_ms);
    let height = TOP + shown.len() * LANE + BOTTOM;
    html! {
        svg.timeline role="img" height=(height) aria-label=(summary(shown, now_ms)) {
            @for quarter in 0..=4_u32 {
                @let x = format!("{}%", quarter * 25);
                line.grid x1=(x) x2=(x) y1="0" y2=(height - BOTTOM) {}
                @if quarter % 2 == 0 {
                    @let anchor = ["start", "middle", "end"][(quarter / 2) as usize];
                    text.faint x=(x) y=(height - 5) text-anchor=(anchor) {
                        (if quarter == 4 { "now".to_owned() } else { time_of_day(window.at(quarter)) })
                    }
                }
            }
            @for (at, lane) in shown.iter().rev().enumerate() {
                (bar(lane, &window, TOP + at * LANE, now_ms))
            }
        }
    }
}

fn bar(lane: &Lane, window: &Window, y: usize, now_ms: u64) -> Markup {
    let (begin, end) = (window.part(lane.begin_ms), window.part(lane.end(now_ms)));
    // However short it was, a hold is seen, also at the right edge.
    let width = (end - begin).max(0.4);
    let x = begin.min(100.0 - width);
    html! {
        text x="4" y=(y + 13) {
            (clipped(&lane.who, LABEL))
            tspan.faint dx="8" { (length(lane.held(now_ms))) }
        }
        rect.hold.now[lane.end_ms.is_none()] x=(format!("{x:.2}%")) y=(y + 19) width=(format!("{width:.2}%"))
            height="8" rx="2" {}
    }
}

/// The stretch of time that is drawn.
struct Window {
    begin_ms: u64,
    end_ms: u64,
}

impl Window {
    /// Begins where the lock was watched first, and never so far back that the latest holds are too small to
    /// see.
    fn of(lanes: &[Lane], from_ms: u64, now_ms: u64) -> Window {
        let ended = lanes.iter().filter(|lane| lane.end_ms.is_some());
        let first = ended.map(|lane| lane.begin_ms).min().unwrap_or(from_ms).min(from_ms);
        let begin = first.max(now_ms.saturating_sub(LONGEST_MS)).min(now_ms.saturating_sub(SHORTEST_MS));
        Window { begin_ms: begin, end_ms: now_ms.max(begin + 1) }
    }

    fn part(&self, at_ms: u64) -> f64 {
        let passed = at_ms.clamp(self.begin_ms, self.end_ms) - self.begin_ms;
        passed as f64 / (self.end_ms - self.begin_ms) as f64 * 100.0
    }

    fn at(&self, quarter: u32) -> u64 {
        self.begin_ms + (self.end_ms - self.begin_ms) / 4 * u64::from(quarter)
    }
}

fn summary(lanes: &[Lane], now_ms: u64) -> String {
    let Some(last) = lanes.last() else { return "Nobody has held the lock since it is watched.".to_owned() };
    let state = if last.end_ms.is_some() { "It is free now." } else { "The latest still holds it." };
    format!(
        "Timeline of {} holds. The latest is by {} for {}. {state}",
        lanes.len(),
        clipped(&last.who, LABEL),
        length(last.held(now_ms))
    )
}

const LANES: usize = 12;
const LANE: usize = 34;
const TOP: usize = 4;
const BOTTOM: usize = 22;
/// The characters of a note that fit on a phone.
const LABEL: usize = 44;
const SHORTEST_MS: u64 = 60_000;
const LONGEST_MS: u64 = 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 10_000_000;

    fn lane(begin_ms: u64, end_ms: Option<u64>) -> Lane {
        Lane { who: "host=a".to_owned(), begin_ms, end_ms, fence: None }
    }

    #[test]
    fn present_hold_reaches_the_right_edge() {
        let page = draw(&[lane(NOW - 30_000, None)], NOW - 60_000, NOW).into_string();
        assert!(page.contains(r#"x="50.00%" y="23" width="50.00%""#), "{page}");
        assert!(page.contains("hold now") && page.contains("30 s"), "{page}");
    }

    #[test]
    fn hold_of_a_moment_is_seen() {
        let page = draw(&[lane(NOW - 1, Some(NOW))], NOW - 60_000, NOW).into_string();
        assert!(page.contains(r#"x="99.60%""#) && page.contains(r#"width="0.40%""#), "{page}");
    }

    #[test]
    fn hold_of_days_does_not_hide_the_latest_ones() {
        let lanes = [lane(0, None), lane(NOW - 20_000, Some(NOW - 10_000))];
        let window = Window::of(&lanes, NOW - 30_000, NOW);
        assert_eq!(NOW - window.begin_ms, SHORTEST_MS);
        assert_eq!(window.part(0), 0.0);
    }

    #[test]
    fn only_the_latest_lanes_are_drawn() {
        let lanes: Vec<Lane> =
            (0..40).map(|at| lane(NOW - 50_000 + at * 1_000, Some(NOW - 49_500 + at * 1_000))).collect();
        assert_eq!(draw(&lanes, NOW - 60_000, NOW).into_string().matches("class=\"hold\"").count(), LANES);
        assert_eq!(draw(&[], NOW, NOW).into_string().matches("<rect").count(), 0);
    }

    #[test]
    fn clock_that_is_ahead_moves_no_hold_into_the_future() {
        assert_eq!(lane(NOW, Some(NOW - 5)).held(NOW), Duration::ZERO);
    }
}
