//! The library's log, on stderr.
//!
//! Ground rules: warnings are shown unless LEASEHOLD_LOG says otherwise, more only on request. Lines are
//! printed by `stderr`, which masks passwords and delays no caller; stdout and exit codes do not depend on
//! the log. Only leasehold's own events are shown: the lines of other libraries may hold anything.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::exit::{Exit, Problem};
use crate::output::stderr::Stderr;

/// Starts the log, at the level of the `-v` flags, else at that of the environment.
///
/// # Errors
/// Usage, where the environment names no level.
pub(crate) fn start(verbose: u8) -> Result<(), Problem> {
    // A value that is not text names no level.
    let named = std::env::var_os(VARIABLE).unwrap_or_default();
    let level = level(verbose, &named.to_string_lossy()).ok_or_else(|| {
        let text = format!("{VARIABLE} is not a log level: use off, error, warn, info, debug or trace");
        Problem::new(Exit::Usage, text)
    })?;
    // No other part of this program sets one, so this cannot fail.
    drop(tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Log { level })));
    Ok(())
}

fn level(verbose: u8, named: &str) -> Option<LevelFilter> {
    match (verbose, named.trim()) {
        (0, "") => Some(LevelFilter::WARN),
        (0, named) if named.parse::<usize>().is_ok() => None,
        (0, named) => named.parse().ok(),
        (1, _) => Some(LevelFilter::INFO),
        (2, _) => Some(LevelFilter::DEBUG),
        _ => Some(LevelFilter::TRACE),
    }
}

/// The subscriber that shows the events.
#[derive(Debug)]
struct Log {
    level: LevelFilter,
}

impl<S: Subscriber> Layer<S> for Log {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= self.level && metadata.target().starts_with("leasehold")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        if let Ok(stderr) = Stderr::start() {
            stderr.print_line(&line.text(*event.metadata().level()));
        }
    }
}

/// One event as a line.
#[derive(Debug, Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn text(&self, level: Level) -> String {
        let level = match level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        // A line break in it would look like a line of its own.
        format!("{level}: {}{}", self.message, self.fields).replace('\n', " ")
    }

    fn add(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            name => drop(write!(self.fields, ", {name}: {value}")),
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

const VARIABLE: &str = "LEASEHOLD_LOG";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_flag_overrides_the_environment_and_a_typo_is_an_error() {
        assert_eq!(level(0, ""), Some(LevelFilter::WARN));
        assert_eq!(level(0, "off"), Some(LevelFilter::OFF));
        assert_eq!(level(0, "debug"), Some(LevelFilter::DEBUG));
        assert_eq!(level(1, "off"), Some(LevelFilter::INFO));
        assert_eq!(level(9, ""), Some(LevelFilter::TRACE));
        assert_eq!((level(0, "loud"), level(0, "3")), (None, None));
    }
}
