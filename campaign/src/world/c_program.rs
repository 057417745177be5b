//! The machine's C compiler, for the few programs that have to stand before a server.

use std::path::Path;
use std::process::Command;

use leasehold_testkit::require;

use crate::Outcome;

/// Writes a program beside its source, with these options of the compiler.
///
/// # Errors
/// [`leasehold_testkit::Error::is_missing`] without a compiler; else what the compiler says.
pub(super) fn compile(source: &str, program: &Path, options: &[&str]) -> Outcome {
    let compiler = require::program("cc", "gcc")?;
    let file = program.with_extension("c");
    std::fs::write(&file, source)?;
    let output = Command::new(compiler).args(options).args(["-O1", "-o"]).arg(program).arg(&file).output()?;
    if output.status.success() {
        return Ok(());
    }
    let program = program.display();
    Err(format!("{program} cannot be built: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Returns a path as one word of a shell.
pub(super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}
