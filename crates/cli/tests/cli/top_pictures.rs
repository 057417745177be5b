//! The pictures of `top` in the book, drawn from the cells of a terminal.
//!
//! `cargo test -p leasehold-cli --test cli top_pictures -- --ignored` writes them anew.

use std::fmt::Write;
use std::path::Path;

use crate::support::emulator::Emulator;
use crate::support::{Sandbox, Started, eventually};

const CELL: (usize, usize) = (9, 18);
const MARGIN: usize = 12;
/// The colours of the sixteen that a terminal has, on a dark screen.
const PALETTE: [&str; 16] = [
    "#1d1f21", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d0d0d0", "#7f848e",
    "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#ffffff",
];
const TEXT: &str = "#d8dee9";
const SCREEN: &str = "#1d1f21";

#[test]
#[ignore = "it writes the pictures of the book"]
fn pictures_of_the_book_are_drawn() {
    let sandbox = Sandbox::new().with("USER", "ann");
    let mut holders = Vec::new();
    for (name, note) in [
        ("backup/db1", "host=db1 pid=911 cmd=pg_dump"),
        ("invoices/2026-11", "host=app2 pid=4120 cmd=invoices"),
        ("nightly", "host=batch1 pid=77 cmd=report.sh"),
        ("reindex", "host=app1 pid=3021 cmd=reindex"),
    ] {
        holders.push(sandbox.hold(&["--note", note, name]));
    }
    let stuck = sandbox.start(
        &["--note", "host=app3 pid=2207 cmd=charge", "--on-revoke", "term", "orders/42"],
        "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done",
    );
    stuck.line_with("ready");
    let queue: Vec<Started> = [("app1", 3), ("app2", 4), ("app4", 5)]
        .map(|(host, pid)| {
            let note = format!("host={host} pid={pid} cmd=charge");
            sandbox.start(&["--note", &note, "orders/42"], "true")
        })
        .into();
    sandbox.wait_for_line("orders/42", 1, 3);
    let circle = (nested(&sandbox, "stock", "ledger"), nested(&sandbox, "ledger", "stock"));
    eventually(|| match sandbox.end(&["ls", "--deadlocks"]).code() {
        1 => Ok(()),
        code => Err(format!("exit code {code}")),
    });
    let mut top = Emulator::start(&sandbox, "leasehold", &["top"], (24, 80));
    top.see("1 DEADLOCK");
    top.see("> orders/42");
    top.wait("all holders", |screen| !screen.contains("..."));
    draw(&sandbox, "top-list", &top);
    top.press("\r");
    top.see("QUEUE OF 3");
    draw(&sandbox, "top-lock", &top);
    top.press("r");
    top.see("Ask the 1 holder");
    top.press("\x15db1 goes down at 5");
    top.see("Reason: db1 goes down at 5_");
    draw(&sandbox, "top-revoke", &top);
    top.press("\x1bb");
    top.see("Break orders/42");
    draw(&sandbox, "top-break", &top);
    top.press("n\x1b");
    top.miss("QUEUE OF 3");
    top.press("w");
    top.see("DEADLOCK OF 2 WAITS");
    draw(&sandbox, "top-waits", &top);
    drop((top, circle, queue, stuck, holders));
}

/// Holds a lock and waits for another one.
fn nested(sandbox: &Sandbox, name: &str, then: &str) -> Started {
    let wait = format!("touch held-{name}; until [ -e held-{then} ]; do sleep 0.01; done");
    let note = format!("host=shop pid={} cmd={name}.sh", name.len());
    sandbox.start(&["--note", &note, name], &format!("{wait}; leasehold run --note '{note}' {then} -- true"))
}

/// Writes the screen as a picture.
fn draw(sandbox: &Sandbox, name: &str, top: &Emulator) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src/images");
    std::fs::create_dir_all(&folder).unwrap();
    // The place of a test is of no interest.
    let store = format!("{:1$}", "file:///srv/locks", sandbox.url.len());
    let picture = svg(top.parser.screen()).replace(&sandbox.url, &store);
    std::fs::write(folder.join(format!("{name}.svg")), picture).unwrap();
}

/// The look of a cell.
#[derive(Clone, PartialEq)]
struct Look {
    text: String,
    screen: String,
    bold: bool,
    dim: bool,
}

impl Look {
    fn of(cell: &vt100::Cell) -> Look {
        let (mut text, mut screen) = (colour(cell.fgcolor(), TEXT), colour(cell.bgcolor(), SCREEN));
        if cell.inverse() {
            std::mem::swap(&mut text, &mut screen);
        }
        Look { text, screen, bold: cell.bold(), dim: cell.dim() }
    }
}

fn colour(colour: vt100::Color, default: &str) -> String {
    match colour {
        vt100::Color::Idx(index) if index < 16 => PALETTE[usize::from(index)].to_owned(),
        vt100::Color::Rgb(red, green, blue) => format!("#{red:02x}{green:02x}{blue:02x}"),
        _ => default.to_owned(),
    }
}

/// Draws the cells of a screen: runs of cells that look alike are one text.
fn svg(screen: &vt100::Screen) -> String {
    let (lines, columns) = screen.size();
    let (width, height) =
        (usize::from(columns.get()) * CELL.0 + 2 * MARGIN, usize::from(lines.get()) * CELL.1 + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" \
         font-size=\"15\">\n<rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{SCREEN}\"/>\n"
    );
    for line in 0..lines.get() {
        let mut column = 0;
        while column < columns.get() {
            let first = column;
            let look = Look::of(screen.cell(line, column).unwrap());
            let mut text = String::new();
            while column < columns.get() && Look::of(screen.cell(line, column).unwrap()) == look {
                let contents = screen.cell(line, column).unwrap().contents();
                text.push_str(if contents.is_empty() { " " } else { contents });
                column += 1;
            }
            write_run(&mut svg, &look, (usize::from(line), usize::from(first)), &text);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn write_run(svg: &mut String, look: &Look, (line, column): (usize, usize), text: &str) {
    let (x, y) = (MARGIN + column * CELL.0, MARGIN + line * CELL.1);
    let width = text.chars().count() * CELL.0;
    if look.screen != SCREEN {
        let height = CELL.1;
        let fill = &look.screen;
        writeln!(svg, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>")
            .unwrap();
    }
    if text.trim().is_empty() {
        return;
    }
    let escaped = text.trim_end().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let bold = if look.bold { " font-weight=\"bold\"" } else { "" };
    let dim = if look.dim { " opacity=\"0.7\"" } else { "" };
    let (baseline, length) = (y + 14, text.trim_end().chars().count() * CELL.0);
    writeln!(
        svg,
        "<text x=\"{x}\" y=\"{baseline}\" textLength=\"{length}\" fill=\"{}\"{bold}{dim} xml:space=\"preserve\">{escaped}</text>",
        look.text
    )
    .unwrap();
}
