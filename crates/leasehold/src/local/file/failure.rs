//! Error texts for failures of the operating system.
//!
//! Every text names the path, and the remedy if it is known.

use std::path::Path;

use leasehold_core::{Effect, Failure, FailureKind};
use rustix::io::Errno;

/// Returns the failure of `doing` something with `path`. Nothing took effect.
pub(super) fn cannot(doing: &str, path: &Path, cause: Errno) -> Failure {
    let (kind, advice) = advice(cause);
    let detail = format!("cannot {doing} {}: {}{advice}", redacted(path), std::io::Error::from(cause));
    Failure::new(kind, Effect::None, detail).because(std::io::Error::from(cause))
}

/// Returns the failure for a file that is not part of a store, or is damaged. It is left as it is.
pub(super) fn foreign(path: &Path, what: &str) -> Failure {
    Failure::new(FailureKind::Foreign, Effect::None, format!("{} {what}", redacted(path)))
}

/// Returns the failure for a store that may not be used as it is set up.
pub(super) fn denied(path: &Path, what: &str) -> Failure {
    Failure::new(FailureKind::Denied, Effect::None, format!("{} {what}", redacted(path)))
}

/// Returns the failure for a set-up that the file store does not support.
pub(super) fn unsupported(path: &Path, what: &str) -> Failure {
    Failure::new(FailureKind::Unsupported, Effect::None, format!("{} {what}", redacted(path)))
}

/// Formats a path without the ids of claims, which are the names of their files. Names of resources are
/// left as they are.
pub(super) fn redacted(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| name.starts_with("claim-"));
    let Some(name) = name else { return path.display().to_string() };
    let is_id = |part: &&str| part.len() >= 32 && part.is_ascii();
    let parts: Vec<String> = name
        .split('-')
        .map(|part| Some(part).filter(is_id).map_or(part.to_owned(), |id| format!("{}…", &id[..6])))
        .collect();
    path.with_file_name(parts.join("-")).display().to_string()
}

fn advice(cause: Errno) -> (FailureKind, &'static str) {
    match cause {
        Errno::ACCESS | Errno::PERM => (
            FailureKind::Denied,
            "; give this user read and write permission there, or name another directory for the store",
        ),
        Errno::ROFS => (FailureKind::Denied, "; name a directory on a writable file system for the store"),
        Errno::LOOP | Errno::NOTDIR => (
            FailureKind::Foreign,
            "; a part of this path is a file, or a symbolic link inside the store, which it does not follow: \
             remove it, or name another directory for the store",
        ),
        Errno::EXIST => (
            FailureKind::Foreign,
            "; this path is not a directory: remove it, or name another directory for the store",
        ),
        Errno::NOSPC | Errno::DQUOT => {
            (FailureKind::Unavailable, "; free some space (or inodes: `df -i`) and try again")
        }
        Errno::MFILE => (
            FailureKind::Unavailable,
            "; this process has too many open files: each held or waiting claim takes two or three, raise `ulimit -n`",
        ),
        Errno::NFILE => {
            (FailureKind::Unavailable, "; this machine has too many open files: raise fs.file-max")
        }
        Errno::NAMETOOLONG => (FailureKind::Invalid, "; name a directory with a shorter path for the store"),
        _ => (FailureKind::Unavailable, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_beginning_of_an_id_at_most() {
        let id = "6c7aa303a9c1dcae5527481f45117316";
        let path = format!("/x/{id}/claim-00000000000000000001-1-1-{id}");
        for (path, redacted) in [
            (path.clone(), format!("/x/{id}/claim-00000000000000000001-1-1-6c7aa3…")),
            (format!("{path}-revoked"), format!("/x/{id}/claim-00000000000000000001-1-1-6c7aa3…-revoked")),
            (format!("/x/{id}"), format!("/x/{id}")),
        ] {
            let failure = cannot("open", Path::new(&path), Errno::ACCESS);
            assert!(failure.detail().starts_with(&format!("cannot open {redacted}: ")), "{failure}");
        }
    }

    #[test]
    fn failure_names_the_path_and_the_remedy() {
        let failure = cannot("create", Path::new("/x/y"), Errno::ACCESS);
        assert_eq!(failure.kind, FailureKind::Denied);
        assert!(failure.detail().starts_with("cannot create /x/y: Permission denied"), "{failure}");
        assert!(failure.detail().contains("name another directory"), "{failure}");
        assert_eq!(cannot("open", Path::new("/x"), Errno::MFILE).kind, FailureKind::Unavailable);
        // Trying again helps with none of these.
        for cause in [Errno::EXIST, Errno::NOTDIR, Errno::LOOP] {
            assert_eq!(cannot("create", Path::new("/x"), cause).kind, FailureKind::Foreign);
        }
    }
}
