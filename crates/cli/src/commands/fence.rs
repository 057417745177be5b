//! `fence`: compares the fence of a holder with a file that the lock protects.
//!
//! Ground rules: no store is asked. The file beside the protected one decides, as for the library's fenced files.

use std::io::{self, Read};

use leasehold::Fence;
use leasehold::fenced::{FencedFile, FencedFileError};

use crate::exit::{Exit, Problem};
use crate::output::text::visible;
use crate::request::args::{FenceArgs, FenceVerb};

/// Runs `leasehold fence`.
///
/// # Errors
/// Lost, if a newer holder was here; busy, if another process does not end its call; refused, without a fence, or if
/// the stored one is damaged; usage; a file cannot be written.
pub(crate) fn fence(verb: FenceVerb) -> Result<Exit, Problem> {
    match verb {
        FenceVerb::Check(args) => drop(opened(&args)?),
        FenceVerb::Write(args) => {
            // The holder may have been overtaken while it made the content: the fence is compared again.
            let file = opened(&args)?;
            let mut content = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut content);
            read.map_err(|error| {
                Problem::new(Exit::Output, format!("cannot read the new content: {error}"))
            })?;
            file.write(&content).map_err(problem)?;
        }
    }
    Ok(Exit::Done)
}

fn opened(args: &FenceArgs) -> Result<FencedFile, Problem> {
    FencedFile::open(&args.file, fence_of(args)?).map_err(problem)
}

fn fence_of(args: &FenceArgs) -> Result<Fence, Problem> {
    if let Some(fence) = args.fence {
        return Ok(fence);
    }
    let inherited = std::env::var_os(FENCE_VARIABLE).filter(|text| !text.is_empty());
    let Some(inherited) = inherited else {
        let text = "without a fence nothing can be compared, and LEASEHOLD_FENCE is not set: run this under `leasehold run` on a store with \
                    fences, or give --fence";
        return Err(Problem::new(Exit::Refused, text));
    };
    let inherited = inherited.to_string_lossy();
    inherited.parse().map_err(|_| {
        let text = format!("LEASEHOLD_FENCE is not a fence: \"{}\"", visible(&inherited));
        Problem::new(Exit::Usage, text)
    })
}

fn problem(error: FencedFileError) -> Problem {
    let exit = match &error {
        FencedFileError::Stale(_) => Exit::Lost,
        FencedFileError::Busy { .. } => Exit::Busy,
        FencedFileError::NoFence(_) | FencedFileError::Damaged { .. } => Exit::Refused,
        _ => Exit::Output,
    };
    Problem::new(exit, error.to_string())
}

const FENCE_VARIABLE: &str = "LEASEHOLD_FENCE";
