//! Plots over time, as SVG: panels below each other, each with a line that begins at zero.

use std::fmt::Write;

/// One quantity over time.
pub(crate) struct Panel {
    /// Its name, with its unit.
    pub(crate) title: String,
    /// Seconds and values.
    pub(crate) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const HEIGHT: f64 = 120.0;
const STEP: f64 = 170.0;

/// Draws panels with a common axis of time. What is before `warm` seconds is shaded.
pub(crate) fn svg(title: &str, panels: &[Panel], warm: f64) -> String {
    let length = panels.iter().flat_map(|panel| &panel.points).map(|(time, _)| *time).fold(1.0, f64::max);
    let height = TOP + STEP * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\" role=\"img\">\n<title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-weight=\"bold\">{title}</text>\n",
        title = escaped(title)
    );
    for (place, panel) in panels.iter().enumerate() {
        draw(&mut svg, panel, TOP + STEP * place as f64, length, warm);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, panel: &Panel, top: f64, length: f64, warm: f64) {
    let most = panel.points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    // Some room above the line, so that a flat one does not look like a frame.
    let most = if most > 0.0 { most * 1.25 } else { 1.0 };
    let (bottom, width) = (top + 20.0 + HEIGHT, WIDTH - LEFT - RIGHT);
    let x = |time: f64| LEFT + time / length * width;
    let y = |value: f64| bottom - value / most * HEIGHT;
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\">{}</text>\n<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{HEIGHT}\" fill=\"#f0f0f0\"/>",
        top + 14.0,
        escaped(&panel.title),
        top + 20.0,
        (x(warm) - LEFT).clamp(0.0, width)
    );
    for part in 0..=4 {
        let value = most * f64::from(part) / 4.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{0:.1}\" x2=\"{1:.1}\" y2=\"{0:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
            y(value),
            WIDTH - RIGHT,
            LEFT - 6.0,
            y(value) + 4.0,
            number(value)
        );
    }
    let path: Vec<String> =
        panel.points.iter().map(|(time, value)| format!("{:.1},{:.1}", x(*time), y(*value))).collect();
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"#0b5394\" stroke-width=\"1.5\" points=\"{}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} s</text>",
        path.join(" "),
        WIDTH - RIGHT,
        bottom + 14.0,
        number(length)
    );
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_panel_has_its_line() {
        let points = vec![(0.0, 5.0), (10.0, 5.0)];
        let panels = [
            Panel { title: "a < b".to_owned(), points },
            Panel { title: "empty".to_owned(), points: vec![] },
        ];
        let svg = svg("redis", &panels, 2.0);
        assert!(svg.contains("a &lt; b") && svg.matches("<polyline").count() == 2, "{svg}");
        assert!(!svg.contains("NaN"), "{svg}");
    }
}
