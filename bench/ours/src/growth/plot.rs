//! A plot of one series, as SVG: both axes logarithmic, one line for each column.

use std::fmt::Write;

use super::page::{number, thousands};
use super::{Point, Series};

/// Draws each column, divided by its first value, over the sizes.
pub(super) fn svg(series: &Series) -> String {
    let lines: Vec<Vec<(f64, f64)>> = (0..series.columns.len()).map(|column| line(series, column)).collect();
    let frame = Frame::around(series, &lines);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\" role=\"img\">\n<title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        escaped(series.title),
        height = HEIGHT + 20.0 * series.columns.len() as f64,
    );
    frame.draw_axes(&mut svg, series);
    frame.draw_proportion(&mut svg);
    for (column, points) in lines.iter().enumerate() {
        let color = COLORS[column % COLORS.len()];
        let path: Vec<String> =
            points.iter().map(|(x, y)| format!("{:.1},{:.1}", frame.x(*x), frame.y(*y))).collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{}\"/>",
            path.join(" ")
        );
        for (x, y) in points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"/>",
                frame.x(*x),
                frame.y(*y)
            );
        }
        let y = HEIGHT + 14.0 + 20.0 * column as f64;
        let first =
            first_value(series, column).map_or(String::new(), |first| format!(" (1 = {})", number(first)));
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{color}\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}{first}</text>",
            y - 11.0,
            LEFT + 18.0,
            escaped(series.columns[column]),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 50.0;
/// Colours that differ in brightness, too.
const COLORS: [&str; 5] = ["#0b5394", "#cc4125", "#38761d", "#b45f06", "#674ea7"];

fn first_value(series: &Series, column: usize) -> Option<f64> {
    let mut values = series.points.iter().map(|point| point.values[column]);
    values.find(|value| value.is_finite() && *value > 0.0)
}

/// Returns the points of a column, each as the size and the growth since the first.
fn line(series: &Series, column: usize) -> Vec<(f64, f64)> {
    let Some(first) = first_value(series, column) else { return Vec::new() };
    let points = series.points.iter().map(|Point { size, values }| (*size as f64, values[column] / first));
    points.filter(|(_, growth)| growth.is_finite() && *growth > 0.0).collect()
}

/// The range of both axes.
struct Frame {
    sizes: (f64, f64),
    growths: (f64, f64),
}

impl Frame {
    fn around(series: &Series, lines: &[Vec<(f64, f64)>]) -> Frame {
        let sizes = series.points.iter().map(|point| point.size as f64);
        let growths = || lines.iter().flatten().map(|(_, growth)| *growth);
        let least = growths().fold(1.0, f64::min).log10().floor();
        let most = growths().fold(1.0, f64::max).log10().ceil();
        Frame {
            sizes: (sizes.clone().fold(f64::MAX, f64::min), sizes.fold(2.0, f64::max)),
            // At least two decades, so that noise looks like noise.
            growths: (10f64.powf(least.min(-1.0)), 10f64.powf(most.max(1.0))),
        }
    }

    fn x(&self, size: f64) -> f64 {
        let part = (size / self.sizes.0).log10() / (self.sizes.1 / self.sizes.0).log10();
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, growth: f64) -> f64 {
        let part = (growth / self.growths.0).log10() / (self.growths.1 / self.growths.0).log10();
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }

    fn draw_axes(&self, svg: &mut String, series: &Series) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let mut growth = self.growths.0;
        while growth <= self.growths.1 * 1.001 {
            let y = self.y(growth);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">×{growth}</text>",
                LEFT - 6.0,
                y + 4.0,
            );
            growth *= 10.0;
        }
        for Point { size, .. } in &series.points {
            let x = self.x(*size as f64);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#eee\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                thousands(*size),
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            bottom + 38.0,
            escaped(series.size),
        );
    }

    /// Draws what a cost would be that grows in proportion, as far as the frame reaches.
    fn draw_proportion(&self, svg: &mut String) {
        let factor = (self.sizes.1 / self.sizes.0).min(self.growths.1);
        let _ = writeln!(
            svg,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#999\" stroke-dasharray=\"4 4\"/>",
            self.x(self.sizes.0),
            self.y(1.0),
            self.x(self.sizes.0 * factor),
            self.y(factor),
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_costs_are_flat_lines_and_growing_ones_rise() {
        let series = Series {
            name: "x",
            title: "a < b",
            size: "locks",
            columns: &["flat", "growing"],
            points: (0..4)
                .map(|power| Point { size: 10usize.pow(power), values: vec![50.0, 10f64.powi(power as i32)] })
                .collect(),
        };
        let (flat, growing) = (line(&series, 0), line(&series, 1));
        let frame = Frame::around(&series, &[flat.clone(), growing.clone()]);
        assert!(flat.iter().all(|(_, growth)| *growth == 1.0));
        assert_eq!(growing.last(), Some(&(1_000.0, 1_000.0)));
        assert!(frame.y(1_000.0) < frame.y(1.0), "up is more");
        assert!((frame.x(1.0) - LEFT).abs() < 0.1 && (frame.x(1_000.0) - (WIDTH - RIGHT)).abs() < 0.1);
        let svg = svg(&series);
        assert!(svg.contains("a &lt; b") && svg.matches("<polyline").count() == 2, "{svg}");
    }
}
