//! One server: its name or address, and its port.

use std::fmt;

use leasehold_core::Failure;

use crate::url::refusal::invalid;

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    /// Its name or address, an IPv6 address without brackets.
    pub name: String,
    /// Its port.
    pub port: u16,
}

impl Host {
    /// Reads `name`, `name:port`, `address:port` or `[address]:port`. `form` is how the whole URL is written.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead.
    pub fn read(text: &str, port: u16, form: &str) -> Result<Host, Failure> {
        let missing = || invalid(format!("a host is missing: write {form}"));
        let (name, given) = match text.strip_prefix('[') {
            Some(rest) => {
                let (name, port) = rest.split_once(']').ok_or_else(missing)?;
                if name.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(invalid("between brackets an IPv6 address is written, as in [::1]:1234"));
                }
                (name, port.strip_prefix(':'))
            }
            None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
        };
        let port = match given {
            None => port,
            Some(port) => port
                .parse::<u16>()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| invalid(format!("a port is a number from 1 to 65535: write {form}")))?,
        };
        if name.is_empty() {
            return Err(missing());
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
        if !name.bytes().all(plain) {
            let advice = "a host is a name or an address: write others than A-Z a-z 0-9 . _ - in punycode";
            return Err(invalid(advice));
        }
        Ok(Host { name: name.to_owned(), port })
    }

    /// Returns `true` if it is this machine, so that nothing crosses a network.
    pub fn is_loopback(&self) -> bool {
        self.name == "localhost"
            || self.name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_read_and_written_alike() {
        for (text, shown) in
            [("a", "a:7"), ("a.b:1", "a.b:1"), ("[::1]", "[::1]:7"), ("[fe80::1]:9", "[fe80::1]:9")]
        {
            assert_eq!(Host::read(text, 7, "x://host").unwrap().to_string(), shown);
        }
        let is_loopback = |text| Host::read(text, 1, "").unwrap().is_loopback();
        assert!(is_loopback("localhost") && is_loopback("127.0.0.9:4") && is_loopback("[::1]"));
        assert!(!is_loopback("10.0.0.1") && !is_loopback("localhost.example"));
    }

    #[test]
    fn invalid_host_is_refused_with_a_hint() {
        for (text, hint) in [
            ("", "host is missing: write x://host"),
            (":7", "host is missing"),
            ("[::1", "host is missing"),
            ("a:0", "1 to 65535"),
            ("a:99999", "1 to 65535"),
            ("a:b", "1 to 65535"),
            ("[zz]:1", "IPv6"),
            ("a b", "a name or an address"),
            ("kä", "punycode"),
        ] {
            let refusal = Host::read(text, 7, "x://host").unwrap_err().to_string();
            assert!(refusal.contains(hint), "{text}: {refusal}");
        }
    }
}
