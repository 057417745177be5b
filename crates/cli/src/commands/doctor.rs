//! `doctor`: checks a store's configuration for problems that affect locks.

use std::io::{self, Write};

use leasehold::{Finding, Note, Severity};

use crate::exit::{Exit, Problem, even_unread};
use crate::output::json;
use crate::output::paint::Paint;
use crate::output::text::visible;
use crate::request::args::DoctorArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold doctor`.
///
/// # Errors
/// The store could not be opened; stdout cannot be written.
pub(crate) async fn doctor(args: DoctorArgs) -> Result<Exit, Problem> {
    let store = StoreUrl::named(args.store.url.as_deref())?.read_only().for_ttl(Some(args.ttl));
    let locks = store.open(Note::default()).await?;
    let findings = locks.diagnose(args.ttl).await;
    let mut out = io::stdout().lock();
    even_unread(match args.json {
        true => findings.iter().try_for_each(|finding| json::line(&mut out, finding)),
        false => print(&mut out, &store.shown(), &findings, Paint::of_stdout()),
    })?;
    Ok(exit(&findings))
}

/// Returns the exit code for the worst finding.
fn exit(findings: &[Finding]) -> Exit {
    match findings.iter().map(|finding| finding.severity).max() {
        Some(Severity::Broken) => Exit::Refused,
        Some(Severity::Risk) => Exit::RiskFound,
        _ => Exit::Done,
    }
}

/// Writes the findings for people: one line for a good one, three for one that needs attention.
fn print(out: &mut impl Write, store: &str, findings: &[Finding], paint: Paint) -> io::Result<()> {
    writeln!(out, "{}", paint.bold(&visible(store)))?;
    for finding in findings {
        let label = format!("{:<7}", finding.severity.word());
        let label = match finding.severity {
            Severity::Good => paint.green(&label),
            Severity::Notice => label,
            Severity::Unknown => paint.yellow(&label),
            _ => paint.red(&label),
        };
        writeln!(out, "  {label}  {}: {}", finding.topic, visible(&finding.found))?;
        for (mark, text) in [("", &finding.meaning), ("→ ", &finding.advice)] {
            if !text.is_empty() {
                writeln!(out, "           {mark}{}", visible(text))?;
            }
        }
    }
    writeln!(out, "{}", sum(findings))
}

fn sum(findings: &[Finding]) -> String {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let counted: Vec<String> = SEVERITIES
        .iter()
        .filter(|severity| count(**severity) > 0)
        .map(|severity| format!("{} {severity}", count(*severity)))
        .collect();
    counted.join(", ")
}

/// Worst first, as they are summed up.
const SEVERITIES: [Severity; 5] =
    [Severity::Broken, Severity::Risk, Severity::Unknown, Severity::Notice, Severity::Good];

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity) -> Finding {
        Finding::new("topic", severity, "seen\u{1b}").meaning("hurts").advice("mend it")
    }

    #[test]
    fn worst_finding_decides_the_exit_code() {
        use Severity::{Broken, Good, Notice, Risk, Unknown};
        let ends = |severities: &[Severity]| {
            exit(&severities.iter().map(|severity| finding(*severity)).collect::<Vec<_>>())
        };
        assert_eq!(ends(&[Good, Notice, Unknown]), Exit::Done);
        assert_eq!(ends(&[Good, Risk, Notice]), Exit::RiskFound);
        assert_eq!(ends(&[Risk, Broken, Good]), Exit::Refused);
    }

    #[test]
    fn finding_is_printed_with_advice_and_no_control_characters() {
        let mut out = Vec::new();
        print(&mut out, "file:", &[finding(Severity::Risk), finding(Severity::Risk)], Paint::Plain).unwrap();
        let one = "  risk     topic: seen\\u{1b}\n           hurts\n           → mend it\n";
        assert_eq!(String::from_utf8(out).unwrap(), format!("file:\n{one}{one}2 risk\n"));
    }
}
