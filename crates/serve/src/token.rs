//! The token: where it is kept, and the comparison with what a client sends.
//!
//! Ground rules: the file is of this user alone, and is refused otherwise. The token is never printed or logged.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use subtle::ConstantTimeEq;

/// The secret that clients send with each change.
#[derive(Clone)]
pub(crate) struct Token {
    secret: String,
    path: PathBuf,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.path.display())
    }
}

impl Token {
    /// Reads the token from the file at `path`, or from one in the runtime directory, which is created with a
    /// new token if it is missing.
    ///
    /// # Errors
    /// A text for people if the file cannot be used.
    pub(crate) fn open(path: Option<&Path>) -> Result<Token, String> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => default_path()?,
        };
        let failed =
            |what: &str, error: io::Error| format!("the token file {} {what}: {error}", path.display());
        let secret = match create(&path) {
            Ok(secret) => secret,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(&path)?,
            Err(error) => return Err(failed("cannot be created", error)),
        };
        Ok(Token { secret, path })
    }

    /// Returns the file that holds the token.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Compares without telling by its time where the difference is.
    pub(crate) fn matches(&self, sent: &str) -> bool {
        self.secret.as_bytes().ct_eq(sent.as_bytes()).into()
    }

    /// Returns what a browser keeps in the place of the token: a proof that ends by itself. Other servers under the
    /// same host name are sent this cookie too, and must not learn the token.
    pub(crate) fn cookie(&self, now: u64) -> String {
        let end = now.saturating_add(COOKIE_LASTS.as_secs());
        format!("{end}.{}", self.proof(end))
    }

    /// Returns `true` for a proof of this token that has not ended.
    pub(crate) fn accepts_cookie(&self, sent: &str, now: u64) -> bool {
        let Some((end, proof)) = sent.split_once('.') else { return false };
        let Ok(end) = end.parse::<u64>() else { return false };
        end > now && self.proof(end).as_bytes().ct_eq(proof.as_bytes()).into()
    }

    fn proof(&self, end: u64) -> String {
        let key = blake3::derive_key("leasehold serve cookie v1", self.secret.as_bytes());
        blake3::keyed_hash(&key, &end.to_be_bytes()).to_hex().to_string()
    }
}

/// The time after which a browser has to sign in again.
pub(crate) const COOKIE_LASTS: Duration = Duration::from_secs(12 * 3600);

/// Creates the file with a new token of 256 random bits.
fn create(path: &Path) -> io::Result<String> {
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let secret: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    if path.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // Another server may read it as soon as it has its name, so it is whole before that.
    // A random name: a draft that a crash has left must not be in the way of a process with the same number.
    let mut suffix = [0_u8; 8];
    getrandom::fill(&mut suffix).map_err(io::Error::other)?;
    let draft = path.with_extension(format!("{:016x}.new", u64::from_be_bytes(suffix)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(format!("{secret}\n").as_bytes()).and_then(|()| file.sync_all());
    let named = written.and_then(|()| std::fs::hard_link(&draft, path));
    std::fs::remove_file(&draft)?;
    named.map(|()| secret)
}

/// Reads a token that exists already.
fn read(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let failed = |error: io::Error| format!("the token file {shown} cannot be read: {error}");
    let mut file = OpenOptions::new().read(true).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(format!("the token file {shown} is not a file: name a file with --token-file"));
    }
    let user = rustix::process::geteuid().as_raw();
    if found.mode() & 0o077 != 0 || (found.uid() != user && found.uid() != 0) {
        return Err(format!(
            "others may read or write the token file {shown} (mode {:04o}): make it private with chmod 0600, and \
             owned by the user of the server",
            found.mode() & 0o7777
        ));
    }
    let mut text = String::new();
    (&mut file).take(LONGEST + 2).read_to_string(&mut text).map_err(failed)?;
    let secret = text.trim_end_matches(['\n', '\r']);
    let is_plain = secret.bytes().all(|byte| byte.is_ascii_graphic());
    if secret.len() < SHORTEST || secret.len() as u64 > LONGEST || !is_plain {
        return Err(format!(
            "the token file {shown} must hold one line of {SHORTEST} to {LONGEST} printable characters without \
             spaces: write a random one, or remove the file to get a new one"
        ));
    }
    Ok(secret.to_owned())
}

/// Returns the file of this user in the runtime directory.
fn default_path() -> Result<PathBuf, String> {
    let named = |variable: &str| {
        let path = std::env::var_os(variable).map(PathBuf::from)?;
        (path.is_absolute() && path.is_dir()).then_some(path)
    };
    // systemd names the directory of a service, and that of a user's session.
    if let Some(own) = named("RUNTIME_DIRECTORY") {
        return Ok(own.join(FILE));
    }
    let user = rustix::process::geteuid().as_raw();
    let folder = match named("XDG_RUNTIME_DIR") {
        Some(session) => session.join("leasehold"),
        None => std::env::temp_dir().join(format!("leasehold-{user}")),
    };
    // An existing one is judged below.
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    let found = std::fs::symlink_metadata(&folder).map_err(|error| {
        format!("{} cannot be created ({error}): name a file with --token-file", folder.display())
    })?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(format!(
            "{} is not a directory of this user alone (mode 0700): name a file with --token-file",
            folder.display()
        ));
    }
    Ok(folder.join(FILE))
}

const FILE: &str = "serve.token";
/// The shortest token, in bytes.
const SHORTEST: usize = 16;
/// The longest token, in bytes.
const LONGEST: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    #[test]
    fn missing_file_is_created_private_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let token = Token::open(Some(&path)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = Token::open(Some(&path)).unwrap();
        assert!(again.matches(&token.secret) && token.secret.len() == 64);
        assert!(!again.matches("") && !again.matches(&token.secret[1..]));
        assert!(!format!("{token:?}").contains(&token.secret));
    }

    #[test]
    fn cookie_is_no_token_and_ends() {
        let (_folder, path) = file("0123456789abcdef0123", 0o600);
        let token = Token::open(Some(&path)).unwrap();
        let cookie = token.cookie(1_000);
        assert!(!cookie.contains(&token.secret) && !token.matches(&cookie));
        assert!(token.accepts_cookie(&cookie, 1_000) && token.accepts_cookie(&cookie, 44_199));
        assert!(!token.accepts_cookie(&cookie, 44_200), "it has ended");
        let (_, proof) = cookie.split_once('.').unwrap();
        assert!(!token.accepts_cookie(&format!("99999999.{proof}"), 1_000), "its end is part of the proof");
        for wrong in ["", ".", "44200.", &cookie[..cookie.len() - 1], &token.secret] {
            assert!(!token.accepts_cookie(wrong, 1_000), "{wrong}");
        }
        let (_folder, path) = file("another token of 20", 0o600);
        assert!(Token::open(Some(&path)).is_err());
        let (_folder, path) = file("another-token-of-20-", 0o600);
        assert!(!Token::open(Some(&path)).unwrap().accepts_cookie(&cookie, 1_000));
    }

    #[test]
    fn file_that_others_may_read_is_refused() {
        for mode in [0o640, 0o604, 0o620, 0o666] {
            let (_folder, path) = file("0123456789abcdef0123", mode);
            let refused = Token::open(Some(&path)).unwrap_err();
            assert!(refused.contains("chmod 0600") && !refused.contains("0123456789"), "{refused}");
        }
    }

    #[test]
    fn weak_or_broken_token_is_refused() {
        for text in
            ["", "short\n", "with a space in the middle\n", &"x".repeat(300), "0123456789abcdef\nsecond\n"]
        {
            let (_folder, path) = file(text, 0o600);
            let refused = Token::open(Some(&path)).unwrap_err();
            assert!(refused.contains("one line"), "{refused}");
        }
    }
}
