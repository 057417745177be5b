//! The inputs of a target that failed once, one file each.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

#[derive(Debug)]
pub(crate) struct Corpus {
    folder: PathBuf,
}

impl Corpus {
    pub(crate) fn new(folder: PathBuf) -> Corpus {
        Corpus { folder }
    }

    /// Returns all inputs, in the order of their names. A folder that does not exist has none.
    pub(crate) fn inputs(&self) -> Vec<Vec<u8>> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        paths.iter().filter_map(|path| fs::read(path).ok()).collect()
    }

    /// Writes an input, and says where it is.
    pub(crate) fn keep(&self, input: &[u8]) -> String {
        let mut hasher = DefaultHasher::new();
        input.hash(&mut hasher);
        let path = self.folder.join(format!("{:016x}", hasher.finish()));
        let written = fs::create_dir_all(&self.folder).and_then(|()| fs::write(&path, input));
        match written {
            Ok(()) => format!("is kept in {}", path.display()),
            Err(error) => format!("cannot be kept in {}: {error}", path.display()),
        }
    }
}
