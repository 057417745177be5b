//! The Sentinels, their name for the primary, and the login for them.

use leasehold_backend::url::{Credentials, Host, invalid};
use leasehold_core::Failure;
use percent_encoding::percent_decode_str;

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
    pub(crate) fn read(hosts: &str, path: &str) -> Result<Group, Failure> {
        let sentinels: Vec<Host> =
            hosts.split(',').map(|text| Host::read(text, SENTINEL_PORT, FORM)).collect::<Result<_, _>>()?;
        if sentinels.len() > MAX_SENTINELS {
            return Err(invalid(format!("{} Sentinels: name {MAX_SENTINELS} at most", sentinels.len())));
        }
        let name = percent_decode_str(path.trim_start_matches('/')).decode_utf8_lossy().into_owned();
        if name.is_empty() || name.contains('/') || name.contains(char::is_control) {
            return Err(invalid(format!(
                "the path is not the name of a primary, as in \"sentinel monitor\" of the Sentinels: write {FORM}"
            )));
        }
        Ok(Group { sentinels, name, credentials: Credentials::new(None, None, PASSWORD_VARIABLE) })
    }

    /// Reads one of the options that only Sentinels have.
    pub(crate) fn read_option(&mut self, name: &str, value: &str) {
        match name {
            "sentinel-user" => self.credentials.user = Some(value.to_owned()),
            _ => self.credentials.read_from(value),
        }
    }
}

/// The port on which Sentinels listen by default.
pub(crate) const SENTINEL_PORT: u16 = 26379;

/// All are asked at once and listened to, so there is a limit.
const MAX_SENTINELS: usize = 15;

const PASSWORD_VARIABLE: &str = "LEASEHOLD_SENTINEL_PASSWORD";
const FORM: &str = "redis+sentinel://h1,h2,h3/name";
