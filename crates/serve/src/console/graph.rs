//! The picture of waits: parties on the left, locks on the right, and lines between them.
//!
//! Ground rules: pure code. Positions are percentages across and pixels down, so the picture is as wide as
//! its place and text keeps its size. The same facts are in a table below the picture.

use leasehold_monitor::text::visible;
use leasehold_monitor::{EdgeKind, GraphNode, NodeKind, WaitGraph};
use maud::{Markup, html};

use super::words::{clipped, count};

/// Draws a graph of waits.
pub(super) fn draw(graph: &WaitGraph, id: &str) -> Markup {
    let places = Places::of(graph);
    let height = places.height();
    html! {
        svg.graph role="img" height=(height) aria-label=(summary(graph)) {
            defs {
                @for kind in ["holds", "waits"] {
                    marker id={ (id) "-" (kind) } viewBox="0 0 10 10" refX="9" refY="5" markerWidth="11"
                        markerHeight="11" markerUnits="userSpaceOnUse" orient="auto" {
                        path.{ (kind) "-end" } d="M0 0L10 5L0 10z" {}
                    }
                }
            }
            @for edge in &graph.edges {
                @let (kind, x1, x2) = match edge.kind {
                    EdgeKind::WaitsFor => ("waits", LEFT_EDGE, RIGHT_EDGE),
                    EdgeKind::HeldBy => ("holds", RIGHT_EDGE, LEFT_EDGE),
                };
                // Of two lines between the same two boxes, each keeps to its side.
                @let shift = if kind == "waits" { SHIFT } else { -SHIFT };
                @let (y1, y2) = (places.middle(edge.from) + shift, places.middle(edge.to) + shift);
                line.(kind) x1=(x1) x2=(x2) y1=(y1) y2=(y2)
                    marker-end={ "url(#" (id) "-" (kind) ")" } {}
            }
            @for (at, node) in graph.nodes.iter().enumerate() { (draw_node(node, places.top(at))) }
        }
    }
}

fn draw_node(node: &GraphNode, top: f64) -> Markup {
    let (class, x, kind) = match node.kind {
        NodeKind::Party => ("owner", "0.5%", "waits and holds"),
        NodeKind::Lock => ("lock", "58.5%", "lock"),
    };
    let text = match (node.text.as_str(), node.kind) {
        ("", NodeKind::Party) => format!("no note, tag {}", node.tag.get(..8).unwrap_or_default()),
        (text, _) => visible(text),
    };
    html! {
        rect.(class) x=(x) y=(top + 1.0) width="41%" height=(BOX - 2.0) rx="6" {}
        // Text of SVG does not wrap.
        foreignObject x=(x) y=(top) width="41%" height=(BOX) {
            div.node title=(text) { p { (clipped(&text, 90)) } p.muted { (kind) } }
        }
    }
}

/// The places of the nodes: each kind in a column of its own, in the order of the graph.
struct Places {
    rows: Vec<usize>,
    longest: usize,
}

impl Places {
    fn of(graph: &WaitGraph) -> Places {
        let (mut parties, mut locks) = (0, 0);
        let rows = graph.nodes.iter().map(|node| {
            let next = match node.kind {
                NodeKind::Party => &mut parties,
                NodeKind::Lock => &mut locks,
            };
            *next += 1;
            *next - 1
        });
        let rows = rows.collect();
        Places { rows, longest: parties.max(locks) }
    }

    fn top(&self, node: usize) -> f64 {
        self.rows.get(node).copied().unwrap_or_default() as f64 * ROW
    }

    fn middle(&self, node: usize) -> f64 {
        self.top(node) + BOX / 2.0
    }

    fn height(&self) -> f64 {
        self.longest.max(1) as f64 * ROW - (ROW - BOX) + 2.0
    }
}

fn summary(graph: &WaitGraph) -> String {
    let of = |kind| graph.nodes.iter().filter(|node| node.kind == kind).count();
    let (parties, locks) =
        (count(of(NodeKind::Party), "party", "parties"), count(of(NodeKind::Lock), "lock", "locks"));
    let names = |at: usize| graph.nodes.get(at).map_or("", |node| node.text.as_str());
    let edges = graph.edges.iter().take(SPOKEN).map(|edge| {
        let verb = match edge.kind {
            EdgeKind::WaitsFor => "waits for",
            EdgeKind::HeldBy => "is held by",
        };
        format!("{} {verb} {}.", clipped(names(edge.from), 40), clipped(names(edge.to), 40))
    });
    format!("{parties} and {locks}. {}", edges.collect::<Vec<_>>().join(" "))
}

const BOX: f64 = 64.0;
const ROW: f64 = 84.0;
const LEFT_EDGE: &str = "42%";
const RIGHT_EDGE: &str = "58%";
const SHIFT: f64 = 6.0;
/// A screen reader gets the rest from the table.
const SPOKEN: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::backend::ClaimId;
    use leasehold::{Deadlock, DeadlockedWait, Resource, Share};

    fn circle() -> WaitGraph {
        let lock = |name| Resource::new(name).unwrap();
        let wait = |byte: u8, note: &str, waits, holds| {
            DeadlockedWait::new(ClaimId::from_bytes([byte; 16]), note, lock(waits), Share::MUTEX)
                .holds(vec![lock(holds)])
        };
        WaitGraph::of_deadlocks(&[Deadlock::new(vec![wait(1, "ann", "b", "a"), wait(2, "<bob>", "a", "b")])])
    }

    #[test]
    fn each_wait_and_each_hold_is_a_line() {
        let page = draw(&circle(), "d1").into_string();
        assert_eq!(page.matches("<line").count(), 4);
        assert_eq!(page.matches("class=\"waits\"").count(), 2);
        assert_eq!(page.matches("class=\"owner\"").count(), 2);
        assert!(page.contains("ann waits for b. a is held by ann."), "{page}");
        assert!(page.contains("&lt;bob&gt;") && !page.contains("<bob>") && !page.contains("style="));
    }

    #[test]
    fn picture_is_as_high_as_its_longer_column() {
        assert_eq!(Places::of(&circle()).height(), BOX + ROW + 2.0);
        assert_eq!(Places::of(&WaitGraph::default()).height(), BOX + 2.0);
    }
}
