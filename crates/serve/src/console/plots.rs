//! Small plots of numbers over time, as SVG.
//!
//! Ground rules: positions along the time are percentages, so a plot takes the width that it gets without
//! being stretched. A picture has its facts as text beside it: it is never the only place where something is
//! said.

use maud::{Markup, html};

/// One plot: a bar for each stretch of time, the oldest first.
pub(super) struct Plot<'a> {
    /// The quantity, as its caption names it.
    pub(super) title: &'a str,
    /// The latest value, as text.
    pub(super) now: String,
    /// The greatest value, as text.
    pub(super) most: String,
    /// The values; `None` where nothing was measured.
    pub(super) values: Vec<Option<f64>>,
    /// The colour of the bars.
    pub(super) tone: Tone,
    /// The time of the first bar, as text: `30 min ago`.
    pub(super) begin: &'a str,
}

/// The colour of a plot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Calm,
    Bad,
}

impl Plot<'_> {
    /// Draws the plot with its caption.
    pub(super) fn draw(&self) -> Markup {
        let summary =
            format!("{}: now {}, at most {} since {}.", self.title, self.now, self.most, self.begin);
        html! {
            figure.plot {
                figcaption { b { (self.title) } span { (self.now) } }
                svg.bars.bad[self.tone == Tone::Bad] role="img" aria-label=(summary) height=(HEIGHT) {
                    @for bar in bars(&self.values) { (bar) }
                    line x1="0" x2="100%" y1=(BASE) y2=(BASE) {}
                }
                p.ends { span { (self.begin) } span { "most " (self.most) } span { "now" } }
            }
        }
    }
}

/// Returns the bars of values that are there. The highest has the whole height.
fn bars(values: &[Option<f64>]) -> Vec<Markup> {
    let most = values.iter().flatten().copied().fold(0.0, f64::max);
    let step = 100.0 / values.len().max(1) as f64;
    let last = values.len().saturating_sub(1);
    let bar = |(at, value): (usize, &Option<f64>)| {
        let value = value.filter(|value| *value > 0.0)?;
        // What is there is seen, however small.
        let height = (value / most * TALLEST).max(2.0);
        let (x, width) = (format!("{:.2}%", at as f64 * step), format!("{:.2}%", step * 0.78));
        let y = format!("{:.1}", BASE - height);
        Some(html! {
            rect.last[at == last] x=(x) y=(y) width=(width) height=(format!("{height:.1}")) {}
        })
    };
    values.iter().enumerate().filter_map(bar).collect()
}

const HEIGHT: f64 = 54.0;
const BASE: f64 = 53.0;
const TALLEST: f64 = 50.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(values: &[Option<f64>]) -> String {
        let (now, most) = ("2".to_owned(), "4".to_owned());
        let values = values.to_vec();
        Plot { title: "Held", now, most, values, tone: Tone::Calm, begin: "30 min ago" }.draw().into_string()
    }

    #[test]
    fn highest_bar_has_the_whole_height_and_gaps_have_none() {
        let page = plot(&[None, Some(4.0), Some(0.0), Some(2.0)]);
        assert_eq!(page.matches("<rect").count(), 2);
        assert!(page.contains(r#"x="25.00%" y="3.0" width="19.50%" height="50.0""#), "{page}");
        assert!(page.contains(r#"class="last" x="75.00%" y="28.0""#), "{page}");
        assert!(page.contains("Held: now 2, at most 4 since 30 min ago."), "{page}");
    }

    #[test]
    fn nothing_measured_is_an_empty_plot() {
        assert_eq!(plot(&[]).matches("<rect").count(), 0);
        assert_eq!(plot(&[None, Some(0.0)]).matches("<rect").count(), 0);
    }

    #[test]
    fn no_picture_needs_inline_style() {
        assert!(!plot(&[Some(1.0)]).contains("style="));
    }
}
