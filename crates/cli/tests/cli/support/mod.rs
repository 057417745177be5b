//! The shared parts of the tests: stores, started processes, and waits for their output.

pub(crate) mod emulator;
pub(crate) mod gate;
pub(crate) mod pty;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use leasehold_testkit::{Lateness, RedisBuilder, RedisServer};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The longest that anything here is waited for.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The longest that the output of a process that has ended is waited for: the thread that reads it may be late.
const UNTIL_CLOSED: Duration = Duration::from_secs(20);

/// A place for one test: a directory, with a file store in it.
pub(crate) struct Sandbox {
    pub(crate) dir: TempDir,
    pub(crate) url: String,
    /// Variables for every process of this place.
    variables: Vec<(String, String)>,
}

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        // A path of the same length everywhere, since it is part of what snapshots show.
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let url = format!("file://{}", dir.path().join("store").display());
        Sandbox { dir, url, variables: Vec::new() }
    }

    /// The same with another store.
    pub(crate) fn on(url: &str) -> Sandbox {
        Sandbox { url: url.to_owned(), ..Sandbox::new() }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Sandbox {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a program into the directory.
    pub(crate) fn program(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        leasehold_testkit::write_executable(&path, content).unwrap();
        path
    }

    /// Copies a program into the directory.
    pub(crate) fn copy(&self, program: &str, name: &str) -> PathBuf {
        let path = self.path(name);
        leasehold_testkit::copy_executable(Path::new(program), &path).unwrap();
        path
    }

    /// Returns `true` if a claim in the store ends by time, and not with its process.
    pub(crate) fn has_leases(&self) -> bool {
        !self.url.starts_with("file:")
    }

    /// The binary with an environment that holds nothing of this machine's user, and the store in
    /// `LEASEHOLD_URL`.
    pub(crate) fn leasehold(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        self.prepare(&mut command);
        command.args(args);
        command
    }

    /// A shell script with `leasehold` in its PATH.
    pub(crate) fn sh(&self, script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        self.prepare(&mut command);
        command.args(["-c", script]);
        command
    }

    pub(crate) fn prepare(&self, command: &mut Command) {
        let folder = Path::new(BINARY).parent().unwrap();
        command.env_clear().env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", folder.display()));
        command.env("HOME", self.dir.path()).env("LEASEHOLD_URL", &self.url).current_dir(self.dir.path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    /// Runs it to its end.
    pub(crate) fn end(&self, args: &[&str]) -> Ended {
        Started::new(self.leasehold(args)).end()
    }

    /// Runs it to its end, with a reader of stdout that has gone.
    pub(crate) fn end_unread(&self, args: &[&str]) -> Ended {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = self.leasehold(args);
        command.stdout(writer);
        Started::new(command).end()
    }

    /// `leasehold run ARGS -- sh -c SCRIPT`, to its end.
    pub(crate) fn run(&self, args: &[&str], script: &str) -> Ended {
        Started::new(self.leasehold(&run_args(args, script))).end()
    }

    /// The same, started only.
    pub(crate) fn start(&self, args: &[&str], script: &str) -> Started {
        Started::new(self.leasehold(&run_args(args, script)))
    }

    /// Holds a lock until its stdin is closed; returns when it is held.
    pub(crate) fn hold(&self, args: &[&str]) -> Started {
        let mut command =
            self.leasehold(&run_args(args, "echo held by $LEASEHOLD_FENCE; read -r _; echo over"));
        command.stdin(Stdio::piped());
        let holder = Started::new(command);
        holder.line_with("held by");
        holder
    }

    /// One line of `show --json`.
    pub(crate) fn show(&self, name: &str) -> serde_json::Value {
        let shown = self.end(&["show", "--json", name]);
        assert_eq!(shown.code(), 0, "{shown:?}");
        serde_json::from_str(&shown.out).unwrap()
    }

    /// Waits until so many hold the lock and so many wait for it.
    pub(crate) fn wait_for_line(&self, name: &str, holders: usize, waiting: usize) {
        let count = |shown: &serde_json::Value, field: &str| shown[field].as_array().unwrap().len();
        eventually(|| {
            let shown = self.show(name);
            let now = (count(&shown, "holders"), count(&shown, "waiting"));
            (now == (holders, waiting)).then_some(()).ok_or(format!("{shown}"))
        });
    }

    /// Waits until the lease of a lock with one holder is renewed: until more of it is left than before. A claim that
    /// ends with its process has no lease.
    pub(crate) fn wait_for_renewal(&self, name: &str) {
        if !self.has_leases() {
            return;
        }
        let mut least = u64::MAX;
        eventually(|| {
            // Each look starts a process, and a renewal is seconds away.
            std::thread::sleep(Duration::from_millis(200));
            let shown = self.show(name);
            let left = shown["holders"][0]["remaining_ms"].as_u64().ok_or_else(|| shown.to_string())?;
            least = least.min(left);
            if left > least { Ok(()) } else { Err(shown.to_string()) }
        });
    }
}

fn run_args<'a>(args: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [&["run"], args, &["--", "sh", "-c", script]].concat()
}

/// A process that is ended with its test.
pub(crate) struct Started {
    child: Child,
    out: Lines,
    err: Lines,
}

/// The output and the status of a process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) took: Duration,
}

impl Started {
    pub(crate) fn new(mut command: Command) -> Started {
        let mut child = command.spawn().unwrap();
        let out = Lines::of(child.stdout.take());
        let err = Lines::of(child.stderr.take());
        Started { child, out, err }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops it, and what it started continues: none of its threads runs any more when this returns.
    pub(crate) fn stop(&self) {
        leasehold_testkit::stop(&self.child).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Writes to its stdin.
    pub(crate) fn type_in(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Waits for a line on stdout that holds this; the line.
    pub(crate) fn line_with(&self, text: &str) -> String {
        self.out.line_with(text)
    }

    /// Waits for a line on stderr that holds this; the line.
    pub(crate) fn complaint_with(&self, text: &str) -> String {
        self.err.line_with(text)
    }

    /// Closes its stdin and waits for its end.
    pub(crate) fn end(self) -> Ended {
        self.end_within(LIMIT)
    }

    /// The same with another limit.
    pub(crate) fn end_within(mut self, limit: Duration) -> Ended {
        let began = Instant::now();
        drop(self.child.stdin.take());
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < limit, "it does not end: {:?} {:?}", self.out.rest(), self.err.rest());
            std::thread::sleep(Duration::from_millis(2));
        };
        Ended {
            status,
            took: began.elapsed(),
            out: self.out.rest_until_closed(),
            err: self.err.rest_until_closed(),
        }
    }

    /// Returns `true` if the process still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Killed, it takes its command along.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Ended {
    /// The exit code; a signal that ended it is a failure of the test.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by signal {:?}: {self:?}", self.status.signal()))
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Ended {
        assert_eq!(self.code(), code, "{self:?}");
        self
    }

    /// Checks that it ended because of this signal, as a shell shows it. If the tests run in the foreground of a
    /// terminal, INT ends leasehold by the signal itself.
    #[track_caller]
    pub(crate) fn expect_end_by(self, signal: Signal) -> Ended {
        let by_signal = || self.status.signal().map(|signal| 128 + signal);
        assert_eq!(self.status.code().or_else(by_signal), Some(128 + signal.as_raw()), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Ended {
        assert!(self.err.contains(text), "no `{text}` in {self:?}");
        self
    }

    /// Checks that nothing was said but that a renewal was late, which is true on a busy machine.
    #[track_caller]
    pub(crate) fn says_nothing_else_than_that_a_renewal_was_late(self) -> Ended {
        let is_late = |line: &str| {
            line.contains("could not be renewed, and is lost in") || line.ends_with("was renewed again")
        };
        assert!(self.err.lines().all(is_late), "{self:?}");
        self
    }
}

/// Lines as they come, from a thread.
struct Lines {
    lines: Receiver<String>,
    seen: std::cell::RefCell<String>,
}

impl Lines {
    fn of(stream: Option<impl Read + Send + 'static>) -> Lines {
        let (sender, lines) = channel();
        if let Some(stream) = stream {
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                let mut line = Vec::new();
                while stream.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                    if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
        Lines { lines, seen: Default::default() }
    }

    #[track_caller]
    fn line_with(&self, text: &str) -> String {
        let began = Instant::now();
        loop {
            match self.lines.recv_timeout(LIMIT.saturating_sub(began.elapsed())) {
                Ok(line) => {
                    self.seen.borrow_mut().push_str(&line);
                    if line.contains(text) {
                        return line.trim_end().to_owned();
                    }
                }
                Err(error) => panic!("no line with `{text}` ({error}) in {:?}", self.seen.borrow()),
            }
        }
    }

    /// Everything so far.
    fn rest(&self) -> String {
        self.lines.try_iter().for_each(|line| self.seen.borrow_mut().push_str(&line));
        self.seen.borrow().clone()
    }

    /// Returns everything until no process holds the stream open; waits only for a while if a process that was
    /// left behind does.
    fn rest_until_closed(&self) -> String {
        loop {
            match self.lines.recv_timeout(UNTIL_CLOSED) {
                Ok(line) => self.seen.borrow_mut().push_str(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    println!("a process that was left behind keeps the output open");
                    break;
                }
            }
        }
        self.seen.borrow().clone()
    }
}

/// Polls until the condition is true.
#[track_caller]
pub(crate) fn eventually<T>(mut ask: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match ask() {
            Ok(value) => return value,
            Err(last) => assert!(began.elapsed() < LIMIT, "never so; last: {last}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until no such process exists, or only what is left of it.
#[track_caller]
pub(crate) fn wait_until_gone(pid: i32) {
    eventually(|| if is_alive(pid) { Err(format!("{pid} lives")) } else { Ok(()) });
}

pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A number that a script printed.
#[track_caller]
pub(crate) fn number(text: &str) -> i32 {
    let digits = text.trim().rsplit(' ').next().unwrap();
    digits.parse().unwrap_or_else(|_| panic!("no number in `{text}`"))
}

/// A Redis server, with a runtime for its methods.
pub(crate) struct Redis {
    pub(crate) server: RedisServer,
    runtime: tokio::runtime::Runtime,
}

impl Redis {
    /// Starts one, or ends the test as skipped.
    pub(crate) fn start_or_skip() -> Option<Redis> {
        Redis::build_or_skip(RedisServer::builder())
    }

    pub(crate) fn build_or_skip(builder: RedisBuilder) -> Option<Redis> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(builder.start_or_skip())?;
        Some(Redis { server, runtime })
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

/// A measurement of how late the machine is, for a test that has no runtime.
pub(crate) struct BlockingLateness {
    lateness: Lateness,
    runtime: tokio::runtime::Runtime,
}

impl BlockingLateness {
    pub(crate) fn watch() -> BlockingLateness {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let lateness = runtime.block_on(async { Lateness::watch() });
        BlockingLateness { lateness, runtime }
    }

    /// Returns the longest delay so far, and ends the measurement.
    pub(crate) fn end(self) -> Duration {
        self.runtime.block_on(self.lateness.end())
    }
}

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");
