//! A plot of one scenario, as SVG: a line for each contestant, from its lowest to its highest round.

use std::fmt::Write;

use super::results::{Measured, Results, Spread};
use super::scenarios::{Measure, Scenario, Side};
use crate::growth::page::number;

/// Draws the most important measure, or nothing if fewer than two contestants have it.
pub(super) fn svg(scenario: &Scenario, results: &Results) -> Option<String> {
    let measured = results.of(scenario.id)?;
    is_drawn(scenario, measured).then(|| draw(scenario, &lines(scenario, measured)))
}

pub(super) fn is_drawn(scenario: &Scenario, measured: &Measured) -> bool {
    lines(scenario, measured).len() > 1
}

/// One contestant.
struct Line {
    name: String,
    side: Side,
    /// The ratio to the limit where there is one, or the value itself.
    spread: Spread,
}

fn measure(scenario: &Scenario) -> Option<Measure> {
    scenario.load.measures().first().copied()
}

fn lines(scenario: &Scenario, measured: &Measured) -> Vec<Line> {
    let Some(measure) = measure(scenario) else { return Vec::new() };
    let limit = scenario.limit().and_then(|name| measured.contestant(name));
    let of = |contestant: &super::scenarios::Contestant| {
        let one = measured.contestant(contestant.name)?;
        let spread = match limit {
            Some(limit) => one.ratio(limit, measure.name)?,
            None => one.spread(measure.name)?,
        };
        (spread.low > 0.0).then(|| Line { name: contestant.name.to_owned(), side: contestant.side, spread })
    };
    scenario.contestants.iter().filter_map(of).collect()
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 34.0;
const STEP: f64 = 26.0;
const BOTTOM: f64 = 46.0;

fn draw(scenario: &Scenario, lines: &[Line]) -> String {
    let axis = Axis::around(lines);
    let bottom = TOP + STEP * lines.len() as f64;
    let height = bottom + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\" role=\"img\">\n<title>{title}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-weight=\"bold\">{title}</text>\n",
        title = escaped(scenario.title)
    );
    for power in axis.from..=axis.to {
        let value = 10f64.powi(power);
        let (x, color) =
            (axis.x(value), if power == 0 && scenario.limit().is_some() { "#333" } else { "#ddd" });
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"{color}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
            bottom + 16.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        bottom + 36.0,
        escaped(&caption(scenario)),
    );
    for (place, Line { name, side, spread }) in lines.iter().enumerate() {
        let y = TOP + STEP * (place as f64 + 0.5);
        let (color, weight) = match side {
            Side::Limit => ("#777", "normal"),
            Side::Floor => ("#38761d", "normal"),
            Side::Ours => ("#0b5394", "bold"),
            Side::Rival => ("#cc4125", "normal"),
        };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{color}\" font-weight=\"{weight}\">{}</text>\
             <line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{color}\" stroke-width=\"3\"/>\
             <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{color}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 12.0,
            y + 4.5,
            escaped(name),
            axis.x(spread.low),
            axis.x(spread.high),
            axis.x(spread.median),
            WIDTH - RIGHT + 12.0,
            y + 4.5,
            if spread.median < 0.1 { format!("{:.4}", spread.median) } else { number(spread.median) },
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn caption(scenario: &Scenario) -> String {
    let Some(measure) = measure(scenario) else { return String::new() };
    let better = if measure.more_is_better { "right is better" } else { "left is better" };
    match scenario.limit() {
        Some(limit) => format!("{}, divided by \"{limit}\" in the same round; {better}", measure.title),
        None => format!("{}; {better}", measure.title),
    }
}

/// The powers of ten that the axis reaches.
struct Axis {
    from: i32,
    to: i32,
}

impl Axis {
    fn around(lines: &[Line]) -> Axis {
        let least = lines.iter().map(|line| line.spread.low).fold(f64::MAX, f64::min);
        let most = lines.iter().map(|line| line.spread.high).fold(0.0, f64::max);
        let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
        Axis { from, to: to.max(from + 1) }
    }

    fn x(&self, value: f64) -> f64 {
        let part = (value.log10() - f64::from(self.from)) / f64::from(self.to - self.from);
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, side: Side, low: f64, high: f64) -> Line {
        Line { name: name.to_owned(), side, spread: Spread { median: (low + high) / 2.0, low, high } }
    }

    #[test]
    fn every_line_lies_between_the_ends_of_the_axis() {
        let lines = [line("a<b", Side::Limit, 1.0, 1.0), line("c", Side::Ours, 0.02, 0.5)];
        let axis = Axis::around(&lines);
        assert_eq!((axis.from, axis.to), (-2, 0));
        assert!((axis.x(0.01) - LEFT).abs() < 0.1 && (axis.x(1.0) - (WIDTH - RIGHT)).abs() < 0.1);
        let svg = draw(&super::super::scenarios::SCENARIOS[0], &lines);
        assert!(svg.contains("a&lt;b") && svg.matches("<circle").count() == 2, "{svg}");
    }
}
