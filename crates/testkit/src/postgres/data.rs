//! The data that a server begins with.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{DATA, Programs};
use crate::directory::Directory;
use crate::error::{Error, cannot};
use crate::peers;
use crate::process::{output, output_here};

impl Programs {
    /// Puts fresh data into a directory. Without a password it is a copy of what was made once, since making it takes
    /// ten times as long; so these clusters have one identifier.
    pub(super) async fn fill(&self, directory: &Directory, password: Option<&str>) -> Result<(), Error> {
        if password.is_some() {
            return self.initdb(directory, password).await;
        }
        let programs = self.clone();
        let template = tokio::task::spawn_blocking(move || programs.template()).await;
        let template = template.map_err(cannot("wait for", "initdb"))??;
        output("cp", copy(&template.join(DATA), &directory.path().join(DATA))).await.map(drop)
    }

    /// Makes a new cluster in a directory, with an identifier that no other has.
    pub(super) async fn initdb(&self, directory: &Directory, password: Option<&str>) -> Result<(), Error> {
        output("initdb", self.initdb_command(directory, password)?).await.map(drop)
    }

    /// Returns the folder of the data that servers without a password begin with.
    fn template(&self) -> Result<PathBuf, Error> {
        let mut version = Command::new(self.path("postgres"));
        version.arg("--version");
        let version = output_here("postgres", version)?;
        // What root has made can be read by root alone.
        let user = rustix::process::geteuid().as_raw();
        peers::folder(&format!("{}-of-{user}", version.trim()), |folder| {
            // Made in a temporary directory, because the server's user may not reach the folder beside the tests.
            let directory = Directory::create("postgres")?;
            self.own(directory.path())?;
            output_here("initdb", self.initdb_command(&directory, None)?)?;
            output_here("cp", copy(&directory.path().join(DATA), &folder.join(DATA))).map(drop)
        })
    }

    fn initdb_command(&self, directory: &Directory, password: Option<&str>) -> Result<Command, Error> {
        let (program, before) = self.command("initdb");
        let mut initdb = Command::new(program);
        initdb.args(before).current_dir(directory.path());
        initdb.args(["-N", "--auth-local=trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-D"]);
        initdb.arg(directory.path().join(DATA));
        match password {
            None => initdb.arg("--auth-host=trust"),
            Some(password) => {
                let file = directory.write("password", password)?;
                self.own(&file)?;
                initdb.arg("--auth-host=scram-sha-256").arg(format!("--pwfile={}", file.display()))
            }
        };
        Ok(initdb)
    }
}

/// Returns a command that copies a folder with its owner, who is the user that the server runs as.
fn copy(from: &Path, to: &Path) -> Command {
    let mut copy = Command::new("cp");
    copy.args(["-a", "--"]).arg(from).arg(to);
    copy
}
