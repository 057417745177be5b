//! The web console in a real browser: each page, live updates, actions, hostile names, themes, keyboard and
//! phone.

mod actions;
mod answers;
mod browser;
mod hostile;
mod live;
mod look;
mod pages;
mod sample;
mod screenshots;
mod site;
