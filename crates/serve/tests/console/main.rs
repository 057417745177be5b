//! The web console in a real browser: each page, live updates, actions, hostile names, themes, keyboard and
//! phone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "it is a test, which the lint does not see in helpers"
)]

mod actions;
mod answers;
mod browser;
mod hostile;
mod live;
mod look;
mod pages;
mod public;
mod sample;
mod screenshots;
mod site;
