//! Facts that a server reports of itself when a connection is made: which process it is, and how it is set
//! up.

use std::collections::HashMap;
use std::time::Duration;

/// The answers of one server to `stats` and `stats settings`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) version: String,
    /// The moment at which it was started, in seconds of its own wall clock: the epoch of its fences. The
    /// server counts its time on from there, so this is the same number for as long as it runs, no matter
    /// how the wall clock changes.
    pub(crate) started: u64,
    pub(crate) uptime: Duration,
    /// Items are numbered, without which nothing can be changed on a condition.
    pub(crate) numbers_items: bool,
    /// Items are removed where memory is needed for others.
    pub(crate) evicts: bool,
    /// Items with at most this much time to live are spared then.
    pub(crate) spares: Option<Duration>,
    pub(crate) evictions: u64,
    pub(crate) bytes: u64,
    pub(crate) max_bytes: u64,
    pub(crate) asks_login: bool,
}

impl Facts {
    /// Reads them; the name of what is missing otherwise.
    pub(crate) fn read(
        stats: Vec<(String, String)>,
        settings: Vec<(String, String)>,
    ) -> Result<Facts, &'static str> {
        let stats: HashMap<String, String> = stats.into_iter().collect();
        let settings: HashMap<String, String> = settings.into_iter().collect();
        let number =
            |name: &'static str| stats.get(name).and_then(|text| text.parse::<u64>().ok()).ok_or(name);
        let setting = |name: &str| settings.get(name).map(String::as_str);
        let (time, uptime) = (number("time")?, number("uptime")?);
        let temporary = setting("temporary_ttl").and_then(|text| text.parse().ok()).map(Duration::from_secs);
        Ok(Facts {
            version: stats.get("version").cloned().ok_or("version")?,
            started: time.checked_sub(uptime).ok_or("uptime")?,
            uptime: Duration::from_secs(uptime),
            numbers_items: setting("cas_enabled") == Some("yes"),
            evicts: setting("evictions") != Some("off"),
            spares: temporary.filter(|_| setting("temp_lru") == Some("yes")),
            evictions: number("evictions").unwrap_or_default(),
            bytes: number("bytes").unwrap_or_default(),
            max_bytes: number("limit_maxbytes").unwrap_or_default(),
            asks_login: setting("auth_enabled_ascii").is_some_and(|file| file != "no"),
        })
    }

    /// Returns for how long it must not be used yet, so that it has run for `settle`.
    pub(crate) fn unsettled(&self, settle: Duration) -> Duration {
        (settle + FIRST_UPTIME).saturating_sub(self.uptime)
    }
}

/// The uptime that a server reports in its first second, which may end at once.
const FIRST_UPTIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let pair = |text: &str| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        text.split(' ').filter_map(pair).collect()
    }

    #[test]
    fn facts_are_read_from_stats_and_settings() {
        let stats = pairs("version=1.6.18 time=1000 uptime=3 evictions=7");
        let settings = pairs("cas_enabled=yes evictions=on temp_lru=no temporary_ttl=61");
        let facts = Facts::read(stats.clone(), settings).unwrap();
        assert_eq!((facts.started, facts.evictions, facts.evicts, facts.spares), (997, 7, true, None));
        assert_eq!(facts.unsettled(Duration::from_secs(2)), Duration::from_secs(1));
        assert_eq!(facts.unsettled(Duration::from_secs(1)), Duration::ZERO);
        let settings = pairs("cas_enabled=no evictions=off temp_lru=yes temporary_ttl=90");
        let facts = Facts::read(stats, settings).unwrap();
        assert_eq!((facts.numbers_items, facts.evicts), (false, false));
        assert_eq!(facts.spares, Some(Duration::from_secs(90)));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(Facts::read(pairs("version=1 time=1"), Vec::new()), Err("uptime"));
        assert_eq!(Facts::read(pairs("version=1 time=1 uptime=2"), Vec::new()), Err("uptime"));
    }
}
