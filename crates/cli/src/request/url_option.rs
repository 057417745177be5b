//! The options of the URL of a store, as the library reads them.

/// Returns `true` if a URL has this option. The library reads encoded names, too.
pub(crate) fn has_option(url: &str, option: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    url::form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_is_found_by_its_whole_name() {
        assert!(has_option("redis://h?db=1&password-file=/x", "password-file"));
        assert!(has_option("redis://h?p%61ssword-file=/x", "password-file"));
        assert!(!has_option("redis://h/a?sentinel-password-file=/x", "password-file"));
        assert!(!has_option("redis://h/password-file=/x", "password-file"));
    }
}
