//! The program that is to be run, looked up before a lock is taken for it.
//!
//! Ground rules: the same search as `execvp`: a name with a slash is a path, any other name is searched in
//! PATH, where the first executable file is used. A file that was found here can be missing when it is
//! started; then the start fails with its own error.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::exit::{Exit, Problem};
use crate::output::text::visible;

/// A command with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    name: OsString,
    pub(crate) arguments: Vec<OsString>,
}

impl Program {
    /// Splits the first argument from the others; `None` without one.
    pub(crate) fn new(args: Vec<OsString>) -> Option<Program> {
        let mut args = args.into_iter();
        Some(Program { name: args.next()?, arguments: args.collect() })
    }

    /// Builds a script, for `/bin/sh`.
    pub(crate) fn shell(script: OsString) -> Program {
        Program { name: "/bin/sh".into(), arguments: vec!["-c".into(), script] }
    }

    /// Returns the program's name as it was written.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the name without its folder, for people.
    pub(crate) fn short_name(&self) -> String {
        Path::new(&self.name).file_name().unwrap_or(&self.name).to_string_lossy().into_owned()
    }

    /// Finds the file.
    ///
    /// # Errors
    /// 127 where there is none, 126 where it may not be executed.
    pub(crate) fn find(&self) -> Result<PathBuf, Problem> {
        self.find_in(std::env::var_os("PATH").as_deref())
    }

    fn find_in(&self, path: Option<&OsStr>) -> Result<PathBuf, Problem> {
        if self.name.as_bytes().contains(&b'/') {
            let file = PathBuf::from(&self.name);
            return judge(&file).map(|()| file).map_err(|error| self.refusal(&error));
        }
        let mut refusal = io::Error::from(io::ErrorKind::NotFound);
        // Without the variable, where a shell and `execvp` search.
        let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
        // An empty name would be found as the folder itself.
        let folders = if self.name.is_empty() { OsStr::new("") } else { path };
        for folder in std::env::split_paths(folders) {
            let file = folder.join(&self.name);
            match judge(&file) {
                Ok(()) => return Ok(file),
                Err(error) if is_missing(&error) => {}
                Err(error) => refusal = error,
            }
        }
        Err(self.refusal(&refusal))
    }

    /// Explains a failed search or start.
    pub(crate) fn refusal(&self, error: &io::Error) -> Problem {
        let name = visible(&self.name.to_string_lossy());
        if is_missing(error) {
            let text = match self.name.as_bytes() {
                [] => "the command is empty: write one after --".to_owned(),
                path if path.contains(&b'/') => format!("{name}: no such file"),
                _ => format!("{name}: no such command in PATH"),
            };
            return Problem::new(Exit::NotFound, text);
        }
        Problem::new(Exit::NotStarted, format!("{name} cannot be started: {error}"))
    }
}

fn judge(file: &Path) -> io::Result<()> {
    if file.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is a directory"));
    }
    Ok(accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS)?)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn search(name: &str, path: &str) -> Result<PathBuf, Exit> {
        let program = Program::new(vec![name.into()]).unwrap();
        program.find_in(Some(OsStr::new(path))).map_err(|problem| problem.exit)
    }

    #[test]
    fn programs_are_sought_as_the_shell_does() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("1"), dir.path().join("2"));
        for (folder, mode) in [(&first, 0o644), (&second, 0o755)] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("tool"), "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(folder.join("tool"), PermissionsExt::from_mode(mode)).unwrap();
        }
        let path = format!("{}:/nowhere:{}", first.display(), second.display());
        assert_eq!(search("tool", &path), Ok(second.join("tool")), "what may not be executed is passed over");
        assert_eq!(search("tool", &first.display().to_string()), Err(Exit::NotStarted));
        assert_eq!(search("no-such-tool", &path), Err(Exit::NotFound));
        assert_eq!(search("", &path), Err(Exit::NotFound));
        let everywhere = Program::new(vec!["sh".into()]).unwrap().find_in(None);
        assert!(everywhere.is_ok_and(|file| file.ends_with("bin/sh")), "without PATH");
        assert_eq!(search(&first.display().to_string(), &path), Err(Exit::NotStarted), "a folder");
        assert_eq!(search(&format!("{}/none", first.display()), &path), Err(Exit::NotFound));
    }
}
