//! Programs of other libraries that contend for the same locks: what they need, and how they are driven.
//!
//! Ground rules: a peer is a real library of its own language, driven by lines on its stdin and stdout.
//! Packages come from the language's own package client, into a folder beside the tests' programs, once;
//! nothing is installed into the system. What cannot be had here is *missing*, as a server that is not
//! installed is.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::error::{Error, cannot};
use crate::process::output_here;
use crate::require;

/// A program that is driven by lines. It ends when its stdin does, and is killed when this is dropped.
///
/// All methods block; call them from a thread that may.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Peer {
    /// Starts it. What it writes to stderr is shown with the test's own output.
    ///
    /// # Errors
    /// If no process can be started.
    pub fn start(mut command: Command) -> Result<Peer, Error> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let name = command.get_program().display().to_string();
        let mut child = command.spawn().map_err(cannot("start", &name))?;
        let (sender, answers) = channel();
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or_else(|| Error::failed(format!("{name} has no stdout")))?;
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if sender.send(line.trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Peer { child, stdin, answers })
    }

    /// Writes one line to its stdin.
    ///
    /// # Errors
    /// If it no longer reads.
    pub fn send_line(&mut self, line: &str) -> Result<(), Error> {
        let stdin = self.stdin.as_mut().ok_or_else(|| Error::failed("the peer's stdin is closed"))?;
        stdin.write_all(format!("{line}\n").as_bytes()).map_err(cannot("send to a peer", line))
    }

    /// Returns the next line of its stdout.
    ///
    /// # Errors
    /// If none comes within a minute, or none will.
    pub fn answer(&self) -> Result<String, Error> {
        self.answer_within(ANSWER_LIMIT)?
            .ok_or_else(|| Error::failed(format!("no answer of a peer within {ANSWER_LIMIT:?}")))
    }

    /// Returns the next line of its stdout, or `None` where it does not come in time.
    ///
    /// # Errors
    /// If no further answer will come.
    pub fn answer_within(&self, limit: Duration) -> Result<Option<String>, Error> {
        match self.answers.recv_timeout(limit) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::failed("the peer has ended")),
        }
    }

    /// Sends it a line, and waits for the answer.
    ///
    /// # Errors
    /// As [`Peer::send_line`] and [`Peer::answer`].
    pub fn ask(&mut self, line: &str) -> Result<String, Error> {
        self.send_line(line)?;
        self.answer()
    }

    /// Stops it (SIGSTOP): its connections stay open, and it does nothing.
    ///
    /// # Errors
    /// If it has ended.
    pub fn stop(&self) -> Result<(), Error> {
        crate::stop(&self.child).map_err(cannot("stop", "a peer"))
    }

    /// Continues it after [`Peer::stop`].
    ///
    /// # Errors
    /// If it has ended.
    pub fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    /// Kills it (SIGKILL), and waits until it is gone: what it held stays behind as a crash leaves it.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn kill(mut self) -> Result<(), Error> {
        self.child.kill().and_then(|()| self.child.wait()).map(drop).map_err(cannot("kill", "a peer"))
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        // It is not waited for before `kill` or `drop`, so the number is still its own.
        rustix::process::kill_process(Pid::from_child(&self.child), signal)
            .map_err(cannot("signal", "a peer"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have been killed and waited for; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a Python that has these packages, each as pip takes it, such as `kazoo>=2.10,<3`.
///
/// # Errors
/// [`Error::is_missing`] where Python, pip or the registry is not there.
pub fn python(packages: &[&str]) -> Result<Command, Error> {
    let folder = python_packages(packages)?;
    let mut command = Command::new(require::program("python3", "python3")?);
    // Nothing is written beside the packages, which several tests may use at the same time.
    command.env("PYTHONPATH", folder).env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// Returns the folder with these Python packages.
///
/// # Errors
/// As [`python`].
pub fn python_packages(packages: &[&str]) -> Result<PathBuf, Error> {
    let python = require::program("python3", "python3")?;
    folder(&format!("python-{}", packages.join("+")), |folder| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
        pip.args(["--retries", "1", "--timeout", "20", "--target"]).arg(folder).args(packages);
        run(&pip, "pip")
    })
}

/// Returns a Node.js that has these packages, each as npm takes it, such as `ioredis@5`.
///
/// # Errors
/// [`Error::is_missing`] where Node.js, npm or the registry is not there.
pub fn node(packages: &[&str]) -> Result<Command, Error> {
    let (node, npm) = (require::program("node", "nodejs")?, require::program("npm", "npm")?);
    let folder = folder(&format!("node-{}", packages.join("+")), |folder| {
        let mut install = Command::new(&npm);
        install.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
        install.arg(folder).args(packages);
        run(&install, "npm")
    })?;
    let mut command = Command::new(node);
    command.env("NODE_PATH", folder.join("node_modules"));
    Ok(command)
}

/// Returns a program of a Rust package that has a workspace, and so dependencies, of its own. It is built
/// where that was not done since it was changed.
///
/// # Errors
/// [`Error::is_missing`] where it cannot be built, for want of the registry above all.
pub fn rust(manifest: &Path, program: &str) -> Result<Command, Error> {
    let name = manifest.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let target = folders()?.join(format!("rust-{name}"));
    let mut build = Command::new(require::program("cargo", "cargo")?);
    build.args(["build", "--quiet", "--locked", "--bin", program, "--manifest-path"]).arg(manifest);
    build.arg("--target-dir").arg(&target);
    run(&build, "cargo")?;
    Ok(Command::new(target.join("debug").join(program)))
}

/// Returns a Java that has these jars of Debian's, and gets the source of its program next. A package that
/// is not installed is fetched and unpacked.
///
/// # Errors
/// [`Error::is_missing`] where a jar cannot be had, or a Java that compiles is not there.
pub fn java(jars: &[(&str, &str)]) -> Result<Command, Error> {
    // A runtime alone cannot run a source.
    require::program("javac", "default-jdk-headless")?;
    java_with(&class_path(jars)?)
}

/// Returns a Java that runs a program of one source file with these jars. The source is compiled once, since that
/// takes ten times as long as the start.
///
/// # Errors
/// As [`java`], or the compiler's message.
pub fn java_program(jars: &[(&str, &str)], source: &Path) -> Result<Command, Error> {
    let javac = require::program("javac", "default-jdk-headless")?;
    let jars = class_path(jars)?;
    let text = std::fs::read_to_string(source).map_err(cannot("read", source.display()))?;
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    let mut hasher = DefaultHasher::new();
    (&text, &jars).hash(&mut hasher);
    let classes = folder(&format!("java-{name}-{:016x}", hasher.finish()), |folder| {
        let mut compile = Command::new(javac);
        compile.arg("-d").arg(folder).args(["-cp", &jars]).arg(source);
        output_here("javac", compile).map(drop)
    })?;
    let mut command = java_with(&format!("{}:{jars}", classes.display()))?;
    command.arg(&*name);
    Ok(command)
}

fn java_with(class_path: &str) -> Result<Command, Error> {
    let mut command = Command::new(require::program("java", "default-jdk-headless")?);
    command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path]);
    Ok(command)
}

/// Returns the paths of jars of Debian's. Those of a package that is not installed are fetched.
fn class_path(jars: &[(&str, &str)]) -> Result<String, Error> {
    let mut paths = Vec::new();
    for (jar, package) in jars {
        let mut path = Path::new(JARS).join(jar);
        if !path.is_file() {
            path = unpacked(package)?.join(JARS.trim_start_matches('/')).join(jar);
        }
        if !path.is_file() {
            return Err(Error::missing(jar, package));
        }
        paths.push(path.display().to_string());
    }
    Ok(paths.join(":"))
}

/// Returns the folder into which a package of Debian's was unpacked. It is fetched as `apt-get` would, and not
/// installed.
fn unpacked(package: &str) -> Result<PathBuf, Error> {
    require::program("apt-get", "apt")?;
    folder(&format!("debian-{package}"), |folder| {
        let mut fetch = Command::new("sh");
        fetch.args(["-ec", UNPACK, "sh"]).arg(folder).arg(package);
        run(&fetch, "apt-get")
    })
}

/// Returns a folder that is kept beside the tests' programs, filled by `fill` unless an earlier test did
/// so.
pub(crate) fn folder(name: &str, fill: impl FnOnce(&Path) -> Result<(), Error>) -> Result<PathBuf, Error> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-+._".contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).collect();
    let folders = folders()?;
    let folder = folders.join(&name);
    if folder.is_dir() {
        return Ok(folder);
    }
    std::fs::create_dir_all(&folders).map_err(cannot("create", folders.display()))?;
    // Filled under another name, so that a folder of the right name is whole.
    let fresh = tempfile::Builder::new().prefix("fresh-").tempdir_in(&folders);
    let fresh = fresh.map_err(cannot("create a folder in", folders.display()))?;
    fill(fresh.path())?;
    match std::fs::rename(fresh.path(), &folder) {
        Ok(()) => {
            // It has another name now, and stays.
            let _ = fresh.keep();
            Ok(folder)
        }
        // Another test was quicker.
        Err(_) if folder.is_dir() => Ok(folder),
        Err(cause) => Err(cannot("name", folder.display())(cause)),
    }
}

/// Returns the folder where packages are kept.
fn folders() -> Result<PathBuf, Error> {
    let program = std::env::current_exe().map_err(cannot("find", "the test's own program"))?;
    Ok(program.parent().unwrap_or(Path::new("/")).join("peers"))
}

/// Runs it to its end, or to the end of [`INSTALL_LIMIT`].
fn run(command: &Command, name: &str) -> Result<(), Error> {
    let mut limited = Command::new("timeout");
    limited.arg(INSTALL_LIMIT.as_secs().to_string()).arg(command.get_program()).args(command.get_args());
    let output = limited.stdin(Stdio::null()).output();
    let output = output.map_err(|cause| Error::absent(format!("{name} cannot be run: {cause}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.trim().lines().last().unwrap_or_default();
    Err(Error::absent(format!("{name} could not get what a peer needs: {}: {last}", output.status)))
}

const JARS: &str = "/usr/share/java";
/// Fetches one package, without those that it depends on, and unpacks it.
const UNPACK: &str =
    r#"cd "$1"; apt-get download --quiet=2 "$2"; for it in ./*.deb; do dpkg-deb -x "$it" .; rm "$it"; done"#;
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Long enough to build the dependencies of a Rust package on a busy machine.
const INSTALL_LIMIT: Duration = Duration::from_secs(400);

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Peer {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Peer::start(command).unwrap()
    }

    #[test]
    fn a_peer_is_driven_by_lines_and_killed() {
        let mut peer = shell("while read -r word; do echo \"you said $word\"; done");
        assert_eq!(peer.ask("yes").unwrap(), "you said yes");
        assert_eq!(peer.answer_within(Duration::from_millis(10)), Ok(None));
        peer.stop().unwrap();
        peer.send_line("late").unwrap();
        assert_eq!(peer.answer_within(Duration::from_millis(50)), Ok(None));
        peer.resume().unwrap();
        assert_eq!(peer.answer().unwrap(), "you said late");
        let pid = peer.child.id();
        peer.kill().unwrap();
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        let ended = shell("exit 0");
        assert!(ended.answer().is_err());
    }

    #[test]
    fn package_folder_is_filled_once_and_kept_only_if_complete() {
        let name = format!("test {}", std::process::id());
        let failed = folder(&name, |_| Err(Error::absent("no registry"))).unwrap_err();
        assert!(failed.is_missing());
        let filled =
            folder(&name, |folder| std::fs::write(folder.join("a"), "1").map_err(cannot("write", "a")));
        let filled = filled.unwrap();
        let again = folder(&name, |_| Err(Error::failed("filled twice"))).unwrap();
        assert_eq!((&again, std::fs::read_to_string(again.join("a")).unwrap().as_str()), (&filled, "1"));
        std::fs::remove_dir_all(filled).unwrap();
    }

    #[test]
    fn unavailable_package_is_reported_as_missing() {
        assert!(unpacked("no-such-package-of-debian").unwrap_err().is_missing());
        assert!(java(&[("no-such.jar", "libno-such-java")]).unwrap_err().is_missing());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo cannot reach it >&2; exit 1"]);
        let error = run(&command, "pip").unwrap_err();
        assert!(error.is_missing() && error.to_string().contains("cannot reach it"), "{error}");
        assert!(run(&Command::new("/no/such/program"), "pip").unwrap_err().is_missing());
    }
}
