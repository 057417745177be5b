//! The folder of a report: new or empty, and its owner's alone. What was there before is never changed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Creates the folder. One that is there already has to be an empty directory, and not a link to one.
pub(super) fn create(folder: &Path) -> io::Result<()> {
    // Without a slash at the end, which would follow a link.
    let folder: PathBuf = folder.components().collect();
    match folder.symlink_metadata() {
        Ok(found) if !found.is_dir() => Err(taken("is not a directory")),
        Ok(_) if folder.read_dir()?.next().is_some() => Err(taken("is not empty")),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                std::fs::create_dir_all(parent)?;
            }
            DirBuilder::new().mode(0o700).create(&folder)
        }
        Err(error) => Err(error),
    }
}

/// The files of a folder, as they are written.
#[derive(Debug)]
pub(super) struct Files<'f> {
    folder: &'f Path,
    pub(super) written: Vec<PathBuf>,
}

impl Files<'_> {
    pub(super) fn of(folder: &Path) -> Files<'_> {
        Files { folder, written: Vec::new() }
    }

    /// Creates a file and writes it. An error has its name.
    pub(super) fn put(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = self.folder.join(name);
        let put = || {
            let mut file = BufWriter::new(create_file(&path)?);
            write(&mut file)?;
            file.flush()
        };
        put().map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        self.written.push(path);
        Ok(())
    }
}

/// Creates a file. One that is there already is an error, and so is a link.
pub(super) fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

fn taken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::AlreadyExists, what)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_folder_is_new_or_empty_and_for_its_owner() {
        let parent = tempfile::tempdir().unwrap();
        let new = parent.path().join("a/b");
        create(&new).unwrap();
        assert_eq!(new.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        create(&new).unwrap();
        std::fs::write(new.join("notes.txt"), "mine").unwrap();
        assert_eq!(create(&new).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(create(&new.join("notes.txt")).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let (empty, link) = (parent.path().join("empty"), parent.path().join("link/"));
        std::fs::create_dir(&empty).unwrap();
        symlink(&empty, parent.path().join("link")).unwrap();
        assert_eq!(create(&link).unwrap_err().kind(), ErrorKind::AlreadyExists);
    }

    #[test]
    fn an_error_has_the_name_of_its_file_and_those_before_stay() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::of(folder.path());
        files.put("history.jsonl", |file| file.write_all(b"{}\n")).unwrap();
        let full = |file: &mut BufWriter<File>| {
            file.write_all(b"half")?;
            Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()))
        };
        let error = files.put("history.edn", full).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("history.edn: No space left"), "{error}");
        assert_eq!(files.written, [folder.path().join("history.jsonl")]);
        assert_eq!(std::fs::read(folder.path().join("history.jsonl")).unwrap(), b"{}\n");
    }

    #[test]
    fn a_file_is_new_and_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (precious, link) = (folder.path().join("precious"), folder.path().join("link"));
        create_file(&precious).unwrap();
        symlink(folder.path().join("elsewhere"), &link).unwrap();
        for taken in [&precious, &link] {
            assert_eq!(create_file(taken).unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        assert!(!folder.path().join("elsewhere").exists());
    }
}
