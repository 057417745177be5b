//! The Sentinels, their name for the primary, and the login for them.

use std::path::PathBuf;

use leasehold_backend::url::{Credentials, Host, Options, UrlOption, invalid};
use leasehold_core::Failure;

/// The Sentinels of one primary.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) sentinels: Vec<Host>,
    /// The name that they give to the primary.
    pub(crate) name: String,
    pub(crate) credentials: Credentials,
}

impl Group {
    /// Reads the hosts and the path of a URL.
    pub(crate) fn read(sentinels: Vec<Host>, name: &str) -> Result<Group, Failure> {
        if sentinels.len() > MAX_SENTINELS {
            return Err(invalid(format!("{} Sentinels: name {MAX_SENTINELS} at most", sentinels.len())));
        }
        if name.is_empty() || name.contains('/') || name.contains(char::is_control) {
            return Err(invalid(format!(
                "the path is not the name of a primary, as in \"sentinel monitor\" of the Sentinels: write {FORM}"
            )));
        }
        Ok(Group {
            sentinels,
            name: name.to_owned(),
            credentials: Credentials::new(None, None, PASSWORD_VARIABLE),
        })
    }

    /// Reads the login that only Sentinels have.
    pub(crate) fn read_login(&mut self, options: &Options) -> Result<(), Failure> {
        self.credentials.user = options.find(&USER)?;
        if let Some(path) = options.find(&PASSWORD_FILE)? {
            self.credentials.read_from(path);
        }
        Ok(())
    }
}

pub(crate) const USER: UrlOption<String> = UrlOption::text("sentinel-user", 512)
    .about("user name for the Sentinels, if they require a login")
    .example("watch")
    .schemes(SCHEMES);
pub(crate) const PASSWORD_FILE: UrlOption<PathBuf> = UrlOption::file("sentinel-password-file")
    .about("file that holds the password for the Sentinels, read again at each login")
    .schemes(SCHEMES);
const SCHEMES: &[&str] = &["redis+sentinel", "rediss+sentinel"];

/// The port on which Sentinels listen by default.
pub(crate) const SENTINEL_PORT: u16 = 26379;

/// All are asked at once and listened to, so there is a limit.
const MAX_SENTINELS: usize = 15;

const PASSWORD_VARIABLE: &str = "LEASEHOLD_SENTINEL_PASSWORD";
const FORM: &str = "redis+sentinel://h1,h2,h3/name";
