//! The configuration of a file store: its location and its permissions.
//!
//! Everything that can be refused without looking at the disk is refused here.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use leasehold_backend::url::{Lack, Scheme, StoreUrls, UrlOption, invalid};
use leasehold_core::Failure;
use rustix::fs::Mode;
use url::Url;

use super::failure::{denied, unsupported};

/// The URLs of stores in files.
pub(crate) static FILE_URLS: StoreUrls = StoreUrls {
    title: "Files",
    schemes: &[Scheme {
        name: "file",
        form: "file:[///path]",
        meaning: "a directory, which is one of this user unless given",
        example: "file:///a/path",
    }],
    options: &[&MODE, &NETWORK],
    lacks: &[
        Lack { schemes: &[], options: &["order"], why: "its waiters are served in order" },
        Lack {
            schemes: &[],
            options: &["ca", "cert", "key", "password-file", "sslmode", "connections", "timeout"],
            why: "a directory has no server to connect to",
        },
    ],
    check: |url| FileConfig::from_url(url).map(drop),
};

const MODE: UrlOption<u32> =
    UrlOption::choice("mode", &[("0600", PRIVATE), ("0660", 0o660), ("0666", 0o666)])
        .also(&[("600", "0600"), ("660", "0660"), ("666", "0666")])
        .about(ABOUT_MODE)
        .default("0600")
        .hint(FOR_WHOM);
const NETWORK: UrlOption<Network> =
    UrlOption::choice("network", &[("refuse", Network::Refuse), ("force", Network::Force)])
        .about(
            "whether a directory on a network file system is accepted, for the processes of one machine only",
        )
        .default("refuse");
const ABOUT_MODE: &str =
    "permissions of the files: for this user, the group of the directory (`chmod 2770`), or all users";
const FOR_WHOM: &str = "0600 is for one user, 0660 for a group, 0666 for all users";

/// The configuration of a [`FileBackend`](super::FileBackend).
///
/// ```
/// use leasehold::{Client, local::{FileBackend, FileConfig}};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// // For all users of this user's group; the same as `file:///that/directory?mode=0660`.
/// let config = FileConfig::new(dir.path().join("locks")).mode(0o660)?;
/// let locks = Client::builder().over(Arc::new(FileBackend::open(config)?))?;
/// let guard = locks.mutex("nightly").lock().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    pub(super) path: PathBuf,
    pub(super) mode: u32,
    pub(super) network: Network,
}

/// The policy for a store directory on a network file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Network {
    /// Refuses it: locks do not reach from one machine to the next there.
    #[default]
    Refuse,
    /// Uses it, for the processes of one machine only; the profile promises less.
    Force,
}

impl FileConfig {
    /// Describes a store in the directory `path`, for this user alone.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FileConfig { path: path.into(), mode: PRIVATE, network: Network::Refuse }
    }

    /// Describes a store in [`default_root`], for this user alone.
    ///
    /// # Errors
    /// As [`default_root`].
    pub fn here() -> Result<Self, Failure> {
        default_root().map(FileConfig::new)
    }

    /// Parses a URL. Without a path it is [`default_root`].
    ///
    #[doc = include_str!("options.md")]
    ///
    /// # Errors
    /// `Invalid` if the text cannot be parsed, with the valid forms, and without the URL, which may
    /// hold a password that is meant for another store; as [`default_root`].
    pub fn from_url(text: &str) -> Result<Self, Failure> {
        if text == "file:" || text == "file://" {
            return FileConfig::here();
        }
        // A URL parser would drop what is behind the one, and read the other as a slash: as the path of another store.
        if text.contains('#') {
            return Err(invalid(
                "a # has no meaning in the URL of a store: write %23 where it is part of the path",
            ));
        }
        if text.contains('\\') {
            return Err(invalid(
                "a \\ has no meaning in the URL of a store: write %5C where it is part of the path",
            ));
        }
        let url = Url::parse(text)
            .map_err(|error| invalid(format!("this is not a URL ({error}): use file:///a/path")))?;
        if url.scheme() != "file" {
            return Err(invalid("this is not the URL of a file store: use file:///a/path"));
        }
        let (_, rest) = text.split_once(':').unwrap_or_default();
        // A URL parser would take it to begin at the root.
        if !rest.is_empty() && !rest.starts_with(['/', '?']) {
            return Err(invalid(
                "this path is not absolute: name it from the root of the file system, file:///a/path",
            ));
        }
        let options = FILE_URLS.options("file", url.query_pairs().into_owned())?;
        let config = if matches!(url.path(), "" | "/") && url.host_str().is_none() {
            FileConfig::here()?
        } else {
            let path = url.to_file_path().map_err(|()| {
                invalid("this names another machine or no absolute path: use file:///a/path")
            })?;
            FileConfig::new(path)
        };
        Ok(config.mode(options.get(&MODE)?)?.network(options.get(&NETWORK)?))
    }

    /// Sets the permission bits of the files that this store creates. Default: 0600.
    ///
    /// Directories get the matching search bits. The bits are set regardless of the umask. A user of a
    /// store may also break and forge its locks: share it only with users that you trust.
    ///
    /// Files and directories in a store of mode 0660 get the group of the store's directory if that has the
    /// set-group-id bit. A directory that this store makes has it, unless a sandbox forbids that, as
    /// `RestrictSUIDSGID=` of systemd does. Its group is that of its maker, or of the directory above if that has the
    /// bit; `chgrp` changes it. A directory that exists keeps its mode: run `chgrp` and `chmod 2770` on it.
    ///
    /// # Errors
    /// `Invalid` for anything but read and write bits, both or none for each of user, group and others.
    pub fn mode(mut self, mode: u32) -> Result<Self, Failure> {
        if ![0o600, 0o660, 0o666].contains(&mode) {
            return Err(invalid(format!("mode {mode:04o} is not possible: {FOR_WHOM}")));
        }
        self.mode = mode;
        Ok(self)
    }

    /// Sets the policy for a network file system.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    pub(super) fn file_mode(&self) -> Mode {
        Mode::from_raw_mode(self.mode)
    }

    pub(super) fn directory_mode(&self) -> Mode {
        Mode::from_raw_mode(self.mode | (self.mode & 0o444) >> 2)
    }

    /// Returns the mode of the store's own directory. If all users may write to it, none may move the
    /// files of others. If a group may, what is made inside has that group, and not the one of its maker.
    pub(super) fn root_mode(&self) -> Mode {
        let special = match self.mode {
            mode if mode & 0o002 != 0 => Mode::SVTX,
            mode if mode & 0o020 != 0 => Mode::SGID,
            _ => Mode::empty(),
        };
        self.directory_mode() | special
    }

    /// Returns `true` if modes must be set after creation because the umask may remove bits.
    pub(super) fn is_shared(&self) -> bool {
        self.mode != PRIVATE
    }
}

const PRIVATE: u32 = 0o600;

/// Returns the default directory of this user's store.
///
/// `$XDG_STATE_HOME/leasehold`, or `$HOME/.local/state/leasehold`, or a directory of this user under the
/// temporary directory if the user has no home directory. The last one is created here, with mode 0700.
///
/// # Errors
/// `Denied` if the directory under the temporary directory belongs to another user.
pub fn default_root() -> Result<PathBuf, Failure> {
    let var = |name| std::env::var_os(name);
    match under_home(var("XDG_STATE_HOME").as_deref(), var("HOME").as_deref()) {
        Some(path) => own_home(path),
        None => under_temp(&std::env::temp_dir()),
    }
}

fn under_home(state: Option<&OsStr>, home: Option<&OsStr>) -> Option<PathBuf> {
    // The XDG specification: a relative path is to be ignored.
    let absolute = |path: Option<&OsStr>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(state) = absolute(state) {
        return Some(state.join("leasehold"));
    }
    // Services often have a home that does not exist, and may not create it.
    let home = absolute(home).filter(|home| home.is_dir())?;
    Some(home.join(".local/state/leasehold"))
}

/// Refuses the home of another user, which root has under `sudo -E`: files that root makes there are
/// closed to that user afterwards.
fn own_home(path: PathBuf) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::MetadataExt;
    let user = rustix::process::geteuid();
    let nearest = path.ancestors().find_map(|level| std::fs::metadata(level).ok());
    if user.is_root() && nearest.is_some_and(|found| found.uid() != user.as_raw()) {
        return Err(denied(
            &path,
            "lies in the home of another user, and root would make directories there that this user cannot use: \
             run sudo with -H, or name the store",
        ));
    }
    Ok(path)
}

fn under_temp(temp: &Path) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let user = rustix::process::getuid().as_raw();
    let path = temp.join(format!("leasehold-{user}"));
    // An existing directory is judged below.
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&path);
    let found = std::fs::symlink_metadata(&path).map_err(|cause| {
        let what = format!("cannot be created ({cause}), and there is no home directory: set XDG_STATE_HOME");
        unsupported(&path, &what).because(cause)
    })?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(denied(
            &path,
            "is not a directory of this user alone (mode 0700): another user may have put it there; \
             remove it, or set XDG_STATE_HOME",
        ));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use leasehold_core::FailureKind;

    use super::*;

    #[test]
    fn file_url_sets_path_mode_and_network() {
        let config = FileConfig::from_url("file:///var/lock/my%20app?mode=0660&network=force").unwrap();
        assert_eq!(config.path, Path::new("/var/lock/my app"));
        assert_eq!((config.mode, config.network), (0o660, Network::Force));
        assert_eq!(config.directory_mode(), Mode::from_raw_mode(0o770));
        assert_eq!(FileConfig::from_url("file:").unwrap(), FileConfig::here().unwrap());
        let defaults = FileConfig::from_url("file:?network=force").unwrap();
        assert_eq!(defaults, FileConfig::here().unwrap().network(Network::Force));
        assert_eq!(FileConfig::from_url("file:///a%23%5C").unwrap().path, Path::new("/a#\\"));
    }

    #[test]
    fn invalid_file_url_is_refused_with_valid_options() {
        for (url, hint) in [
            ("file:///a?mode=rw", "mode=0660"),
            ("file:///a?mode=0644", "0660 for a group"),
            ("file:///a?network=yes", "network=force"),
            ("file:///a?order=fifo", "served in order"),
            ("file:///a?sslmode=disable", "no server"),
            ("file:///a?mode=0660&mode=0600", "written twice"),
            ("file:///a?color=red", "known are mode, network"),
            ("file://host/a", "file:///a/path"),
            ("file:locks", "from the root"),
            ("file:./locks", "from the root"),
            ("file:~/locks", "from the root"),
            ("file:///a#1?mode=0666", "write %23"),
            ("file:///a?mode=0666#1", "write %23"),
            ("file:#", "write %23"),
            ("file:///a\\b", "write %5C"),
            ("redis://x", "file:///a/path"),
        ] {
            let failure = FileConfig::from_url(url).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Invalid);
            assert!(failure.detail().contains(hint), "{url}: {failure}");
        }
    }

    #[test]
    fn the_default_is_under_the_state_directory_then_under_home() {
        let home = tempfile::tempdir().unwrap();
        let found = |state: &str, home: &Path| under_home(Some(state.as_ref()), Some(home.as_os_str()));
        assert_eq!(found("/state", home.path()), Some("/state/leasehold".into()));
        assert_eq!(found("relative", home.path()), Some(home.path().join(".local/state/leasehold")));
        assert_eq!(found("", &home.path().join("gone")), None);
    }

    #[test]
    fn root_refuses_the_home_of_another_user() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let store = home.path().join(".local/state/leasehold");
        assert_eq!(own_home(store.clone()).unwrap(), store);
        std::os::unix::fs::chown(home.path(), Some(65_534), None).unwrap();
        let refused = own_home(store).unwrap_err();
        assert!(refused.detail().contains("sudo with -H"), "{refused}");
    }

    #[test]
    fn the_last_resort_is_a_private_directory_of_this_user() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let path = under_temp(temp.path()).unwrap();
        assert_eq!(under_temp(temp.path()).unwrap(), path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(under_temp(temp.path()).unwrap_err().kind, FailureKind::Denied);
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("/", &path).unwrap();
        assert_eq!(under_temp(temp.path()).unwrap_err().kind, FailureKind::Denied);
    }
}
