//! `serve`: locks over HTTP.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Tuning};
use leasehold_serve::{Server, subscriber};
use rustix::process::Signal;
use tokio::sync::Mutex;

use crate::exit::{Exit, Problem};
use crate::output::stderr::Stderr;
use crate::request::args::serve::ServeArgs;
use crate::request::store::StoreUrl;
use crate::system::descriptors;
use crate::system::service_manager::{ServiceManager, watchdog};
use crate::system::signals::Signals;
use crate::system::terminal::Terminal;

/// Runs `leasehold serve`.
///
/// # Errors
/// The store cannot be opened; refused, if a file or an address cannot be used.
pub(crate) async fn serve(args: ServeArgs) -> Result<Exit, Problem> {
    let cannot_start = |error| Problem::new(Exit::NotStarted, format!("cannot start: {error}"));
    descriptors::raise_limit();
    let stderr = Stderr::start().map_err(cannot_start)?;
    let mut signals = Signals::listen().map_err(cannot_start)?;
    let is_on_terminal = Terminal::controlling().is_some();
    let store = StoreUrl::named(args.store.url.as_deref())?;
    let server = tokio::select! {
        biased;
        // No client has a lock yet that would have to be waited for.
        signal = asked_to_end(&mut signals, is_on_terminal) => return Ok(Exit::by(signal)),
        server = open(args, &store) => server?,
    };
    let signals = Arc::new(Mutex::new(signals));
    announce(&server, &store, &stderr);
    let manager = ServiceManager::of_environment().map(Arc::new);
    if let Some(manager) = &manager {
        manager.send(&format!("READY=1\nSTATUS=serves the locks in {}", store.shown()));
        if let Some(time) = watchdog() {
            tokio::spawn(notify_watchdog(manager.clone(), time / 2));
        }
    }
    let signal = move || -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (signals, manager) = (signals.clone(), manager.clone());
        Box::pin(async move {
            let mut signals = signals.lock().await;
            asked_to_end(&mut signals, is_on_terminal).await;
            if let Some(manager) = manager {
                manager.send("STOPPING=1\nSTATUS=waits until its clients have released their locks");
            }
        })
    };
    let left = server.run(signal).await;
    if left > 0 {
        stderr.print_line(&format!("{left} locks are still held: they end with their leases"));
    }
    Ok(Exit::Done)
}

/// Opens the store and the sockets.
///
/// # Errors
/// Those of [`serve`].
async fn open(args: ServeArgs, store: &StoreUrl) -> Result<Server, Problem> {
    let client = store.open_by(Client::builder().subscriber(subscriber()).tuning(tuning())).await?;
    let mut config = args.config();
    config.store = store.shown();
    let refused = |error| Problem::new(Exit::Refused, format!("cannot serve: {error}"));
    Server::bind(client, config).await.map_err(refused)
}

/// Waits for a signal that asks a server to end.
async fn asked_to_end(signals: &mut Signals, is_on_terminal: bool) -> Signal {
    loop {
        let signal = signals.sent_to_childless().await;
        if asks_to_end(signal, is_on_terminal) {
            return signal;
        }
    }
}

/// Returns `true` if the signal asks a server to end. A HUP does so only by the end of the terminal: a service manager
/// may send one after TERM (`SendSIGHUP=yes`), which would be a second signal. QUIT, USR1 and USR2 have no effect; by
/// their defaults they would end the server without a wait for the holders.
fn asks_to_end(signal: Signal, is_on_terminal: bool) -> bool {
    matches!(signal, Signal::TERM | Signal::INT) || (signal == Signal::HUP && is_on_terminal)
}

/// Notifies the watchdog of the service manager again and again that the tasks of this process run.
async fn notify_watchdog(manager: Arc<ServiceManager>, pause: Duration) {
    loop {
        manager.send("WATCHDOG=1");
        tokio::time::sleep(pause).await;
    }
}

fn announce(server: &Server, store: &StoreUrl, stderr: &Stderr) {
    for url in server.urls() {
        stderr.print_line(&format!("listening at {url}, for the locks in {}", store.shown()));
    }
    stderr.print_line(&format!("the token for changes is in {}", server.token_path().display()));
    if server.has_plain_public_address() {
        stderr.print_line(
            "warning: other machines can connect without TLS, and others on the network can read the token: give \
             --tls-cert and --tls-key",
        );
    }
    if server.is_bound_to_process() {
        stderr.print_line(
            "the locks of this store end with this process: if it is killed, they are free at once, whatever its \
             clients were told; a store with leases does not have this gap",
        );
    }
}

/// Returns the settings of the client, without local hand-offs: each HTTP client gets a claim of its own. So a break by
/// the tag of a claim ends the claim that was shown, and no later one.
fn tuning() -> Tuning {
    Tuning::default().local_handoff_limit(0)
}
