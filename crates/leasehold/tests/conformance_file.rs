//! The laws of all stores, on the store in files. Each connection is a separate handle on one directory,
//! which is to the store what another process is.

use std::path::PathBuf;
use std::sync::Arc;

use leasehold::local::{FileBackend, FileConfig};
use leasehold_conformance::{Subject, TakerCommand};
use leasehold_core::{Backend, Failure};

/// One store in a directory that is removed at the end.
struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn on_disk() -> Self {
        Files::under(std::env::temp_dir())
    }

    /// In memory, where writing through costs nothing and other paths of the kernel are taken.
    fn on_tmpfs() -> Self {
        let shared = PathBuf::from("/dev/shm");
        Files::under(if shared.is_dir() { shared } else { std::env::temp_dir() })
    }

    fn under(parent: PathBuf) -> Self {
        let made = tempfile::tempdir_in(&parent);
        Files {
            directory: made.unwrap_or_else(|error| panic!("no directory in {}: {error}", parent.display())),
        }
    }

    fn store(&self) -> String {
        self.directory.path().join("store").display().to_string()
    }
}

#[async_trait::async_trait]
impl Subject for Files {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        Some(open(&self.store()).unwrap_or_else(|failure| panic!("{failure}")))
    }

    fn taker(&self) -> Option<TakerCommand> {
        Some(TakerCommand::test("taker", self.store()).unwrap_or_else(|error| panic!("{error}")))
    }
}

fn open(store: &str) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Arc::new(FileBackend::open(FileConfig::new(store))?))
}

/// Plays the part of another process, where the suite asks for one.
#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |store| open(store));
}

mod on_disk {
    use super::*;
    leasehold_conformance::suite!(Files::on_disk());
}

mod on_tmpfs {
    use super::*;
    leasehold_conformance::suite!(Files::on_tmpfs());
}
