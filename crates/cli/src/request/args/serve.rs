//! The flags of `serve`.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_serve::{Config, Listen, TlsFiles};

use crate::request::args::{StoreArgs, duration};

/// Serve locks over HTTP to programs in any language, with a web console
///
/// Programs acquire, renew and release locks through the HTTP API; people see them in the console. A lock that
/// is held for a program ends if the program gives no sign of life for its ttl. Without --allow-actions the
/// console only shows, and no one can take a lock from its holder.
#[derive(Debug, clap::Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Where to listen: an address and a port, or unix:/path. Can be given several times
    ///
    /// On a loopback address and on a Unix socket a program needs the token for each change. On any other
    /// address it needs the token for everything; use --tls-cert and --tls-key there.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7878")]
    pub(crate) listen: Vec<Listen>,

    /// The file with the token, which only this user may read [default: serve.token in the runtime directory]
    ///
    /// A missing file is created with a new random token.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Let those who have the token revoke and break locks of others
    #[arg(long)]
    pub(crate) allow_actions: bool,

    /// The certificate, in PEM: all TCP addresses use TLS then
    ///
    /// When it or its key is replaced, new connections get the new certificate within some seconds, without a restart.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// A host name under which the server may be called, beside localhost and addresses
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,

    /// The most locks that are held or waited for at a time
    #[arg(long, value_name = "N", default_value_t = Config::default().limits.holds)]
    pub(crate) max_holds: usize,

    /// The most requests that wait for a lock at a time
    #[arg(long, value_name = "N", default_value_t = Config::default().limits.waiters)]
    pub(crate) max_waiters: usize,

    /// The most streams that keep a lock at a time
    #[arg(long, value_name = "N", default_value_t = Config::default().limits.streams)]
    pub(crate) max_streams: usize,

    /// The most watches and pages of the console that are open at a time
    #[arg(long, value_name = "N", default_value_t = Config::default().limits.watchers)]
    pub(crate) max_watchers: usize,

    /// The most connections that are open at a time
    #[arg(long, value_name = "N", default_value_t = Config::default().limits.connections)]
    pub(crate) max_connections: usize,

    /// The most requests a second from one address
    #[arg(long, value_name = "N", default_value_t = Config::default().limits.rate)]
    pub(crate) max_rate: u32,

    /// The longest wait of one request
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    pub(crate) max_wait: Duration,

    /// The longest ttl that a program may ask for
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    pub(crate) max_ttl: Duration,

    /// The time that holders have to release their locks after TERM, before the server ends
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    pub(crate) grace: Duration,
}

impl ServeArgs {
    /// Returns the settings of the server.
    pub(crate) fn config(self) -> Config {
        let mut config = Config::default();
        config.listen = self.listen;
        config.token_file = self.token_file;
        config.allow_actions = self.allow_actions;
        config.tls = self.tls_cert.zip(self.tls_key).map(|(cert, key)| TlsFiles { cert, key });
        config.allow_hosts = self.allow_host;
        config.limits.holds = self.max_holds;
        config.limits.waiters = self.max_waiters;
        config.limits.streams = self.max_streams;
        config.limits.watchers = self.max_watchers;
        config.limits.connections = self.max_connections;
        config.limits.rate = self.max_rate;
        config.limits.wait = self.max_wait;
        config.limits.ttl = self.max_ttl;
        config.grace = self.grace;
        config
    }
}

const SERVE_EXAMPLES: &str = "\
Examples:
  leasehold serve --store redis://db
  leasehold serve --listen unix:/run/leasehold/http.sock
  leasehold serve --listen 0.0.0.0:7878 --tls-cert cert.pem --tls-key key.pem --allow-host locks.example.com

  token=$(cat $XDG_RUNTIME_DIR/leasehold/serve.token)
  curl -X PUT -H \"Authorization: Bearer $token\" -d '{\"name\":\"nightly\"}' \\
       http://127.0.0.1:7878/v1/holds/$(uuidgen)?wait=10s

On TERM and INT it takes no new locks, reports that to its streams, and waits
until the locks are released, for --grace at most. Locks that are still held
then end with their leases. A second TERM or INT ends it at once. Without a
terminal it ignores HUP; QUIT, USR1 and USR2 do nothing.

Under a service manager that sets NOTIFY_SOCKET it reports when it listens and
when it ends, and shows signs of life if WATCHDOG_USEC asks for them.";
