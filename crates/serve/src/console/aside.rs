//! The side of the page of a lock: steps to take, and the promises of the store.

use leasehold::backend::Liveness;
use leasehold::{Fence, FenceGrade};
use leasehold_monitor::text::visible;
use maud::{Markup, html};

use super::Console;
use super::advice::{Action, Facts, Step};
use super::paths;
use super::visit::Visit;
use super::words::short;

/// Returns what to do about a lock, the harmless first.
pub(super) fn steps(console: &Console, facts: &Facts<'_>) -> Markup {
    let steps = facts.steps();
    html! {
        @if !steps.is_empty() {
            section.panel aria-labelledby="steps" {
                header { h2 #steps { "What to do" } }
                div.pad { ol.steps { @for step in &steps { (step_item(console, step, facts.name)) } } }
            }
        }
    }
}

fn step_item(console: &Console, step: &Step, name: &str) -> Markup {
    let allows = console.state.config.allow_actions;
    html! {
        li {
            span.mark aria-hidden="true" {}
            div {
                (step.text)
                @match step.action {
                    None => {},
                    Some(Action::Waits) => { " " a href="/waits" { "Open the picture" } },
                    Some(action) if allows => { (button(action, name)) },
                    Some(action) => { code.command { (action.command(&visible(name))) } },
                }
            }
        }
    }
}

/// Returns what the store promises of a lock.
pub(super) fn about(console: &Console, visit: &Visit, fence: Option<Fence>) -> Markup {
    let profile = console.state.client.profile();
    let grade = profile.fencing;
    html! {
        section.panel aria-labelledby="about" {
            header { h2 #about { "About this lock" } }
            div.pad {
                dl.pairs {
                    dt { "Last fence" }
                    dd { @match fence { Some(fence) => { code { (fence) } }, None => { "none yet" } } }
                    dt { "Fence grade" }
                    dd { (grade) div.muted.small { (meaning(grade)) } }
                    dt { "Durability" } dd { (profile.durability) }
                    dt { "Kept by" }
                    dd { @match profile.liveness {
                        Liveness::Lease { .. } => { "a lease, which its holder renews" },
                        Liveness::Heartbeat { valid } => {
                            "a connection with signs of life, valid for " (short(valid))
                        },
                        _ => { "a session of its holder" },
                    } }
                }
                @if !console.state.config.allow_actions {
                    p.muted.small {
                        "This console is read-only. Start the server with --allow-actions to act here."
                    }
                } @else if !visit.has_token {
                    p.muted.small { "An action asks you to sign in first." }
                }
            }
        }
    }
}
/// Returns the button of an action, which leads to a page that says what will happen.
fn button(action: Action, name: &str) -> Markup {
    html! {
        div.buttons {
            @match action {
                Action::Revoke => {
                    a.button.slim href=(paths::action(name, "revoke")) { "Ask to release…" }
                },
                Action::Break => {
                    a.button.slim.hurts href=(paths::action(name, "break")) { "Take it away…" }
                },
                Action::Waits => {},
            }
        }
    }
}

/// Says what a grade means, in one sentence.
fn meaning(grade: FenceGrade) -> &'static str {
    match grade {
        FenceGrade::None => "This connection gives no fences.",
        FenceGrade::BestEffort => "Rises while the server keeps its data.",
        FenceGrade::AcrossFailover => "Rises over a failover too, with the exceptions of the store's page.",
        FenceGrade::Strict => "Rises as long as the server keeps its documented durability.",
        _ => "",
    }
}
