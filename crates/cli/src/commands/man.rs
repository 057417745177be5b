//! `man`: writes the man pages of all commands, or the reference or the options of URLs in Markdown.
//!
//! Ground rules: the command is hidden, because only packagers and `cargo xtask docs` need it. All text
//! about commands comes from the declarations in `request::args`, so neither form can differ from `--help`;
//! that about URLs comes from the declarations of the stores. The output does not depend on the terminal.

use std::io::Write;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::exit::{Exit, Problem};
use crate::request::args::{Args, ManArgs};

/// Runs `leasehold man`.
///
/// # Errors
/// The directory or stdout cannot be written.
pub(crate) fn man(args: &ManArgs) -> Result<Exit, Problem> {
    match &args.dir {
        Some(dir) => write_pages(dir)?,
        None if args.urls => std::io::stdout().lock().write_all(leasehold::url_options().as_bytes())?,
        None => std::io::stdout().lock().write_all(reference().as_bytes())?,
    }
    Ok(Exit::Done)
}

fn write_pages(dir: &Path) -> Result<(), Problem> {
    let failed = |path: &Path, error: std::io::Error| {
        Problem::new(Exit::Output, format!("{} cannot be written: {error}", path.display()))
    };
    std::fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
    for command in shown() {
        let (name, text) = page(command)?;
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// Returns the file name and the text of one man page.
fn page(mut command: Command) -> Result<(String, Vec<u8>), Problem> {
    // The usage of `--help` shows the `--` in front of a command, which the generator leaves out.
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let notes = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let is_parent = command.get_subcommands().any(|one| !one.is_hide_set());
    let man = Man::new(command.override_usage(usage)).manual("leasehold");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    // Neither stretch lines nor divide words: tables and names would suffer.
    Roff::default().control("ad", ["l"]).control("nh", []).to_writer(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if is_parent {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(notes) = notes {
        // Examples and tables keep their lines.
        let mut roff = Roff::default();
        roff.control("SH", ["NOTES"]).control("nf", []);
        for line in notes.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        roff.to_writer(&mut text)?;
    }
    Ok((man.get_filename(), text))
}

/// Returns the reference: for each command, what `--help` prints.
fn reference() -> String {
    let mut text = HEAD.to_owned();
    for mut command in shown() {
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
        text += &format!("\n## `{name}`\n\n```text\n");
        for line in command.render_long_help().to_string().lines() {
            text += line.trim_end();
            text += "\n";
        }
        text += "```\n";
    }
    text
}

/// Returns the program and all commands below it that `--help` lists.
fn shown() -> Vec<Command> {
    let mut program = Args::command().term_width(WIDTH);
    program.build();
    let mut found = Vec::new();
    collect(program, &mut found);
    found
}

fn collect(command: Command, found: &mut Vec<Command>) {
    let below: Vec<Command> = command.get_subcommands().filter(|one| is_shown(one)).cloned().collect();
    found.push(command);
    for one in below {
        collect(one, found);
    }
}

fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// The columns of the reference.
const WIDTH: usize = 100;

const HEAD: &str = "\
<!-- Written by `cargo xtask docs` from the declarations of the flags. Do not edit. -->

# Command-line reference

This page has what `--help` prints for each command.
[The command](cli.md) explains the behaviour, the exit codes and the JSON output.
";
