//! A cache stampede: a page that all clients read expires in the cache, and all load it at once. With a
//! single flight, one client loads it for all.
//!
//! Eight clients, each in the role of a process, request one page: first without help, as with a plain
//! cache; then by a single flight; then by a single flight whose loader dies halfway; and last while a
//! stale value exists.
//!
//! ```console
//! $ cargo run --release -p leasehold --example cache_stampede                        # in memory
//! $ cargo run --release -p leasehold --example cache_stampede redis://127.0.0.1      # over a server
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::layer::{Fault, Mode};
use leasehold::{Client, LoadError, SingleFlight};

const CLIENTS: u32 = 8;
const CALLERS: u32 = 100;
/// The time to make the page.
const LOAD: Duration = Duration::from_millis(100);
/// The time for which a page is fresh.
const FRESH: Duration = Duration::from_secs(5);
/// The time after which a loader without a sign of life counts as dead.
const TTL: Duration = Duration::from_secs(3);

/// The slow maker of pages. It counts how often a page is made.
#[derive(Clone, Default)]
struct Source(Arc<AtomicU32>);

impl Source {
    async fn page(self) -> Result<Option<Vec<u8>>, String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(LOAD).await;
        Ok(Some(b"<html>".to_vec()))
    }

    /// Begins to make a page, and gets no further.
    async fn page_that_never_comes(self) -> Result<Option<Vec<u8>>, String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }
}

/// The result of one rush.
struct Rush {
    what: &'static str,
    loads: u32,
    slowest: Duration,
}

#[tokio::main]
async fn main() -> Result<(), LoadError<String>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "mem:stampede".to_owned());
    let mut fleet = Vec::new();
    for _ in 0..CLIENTS {
        fleet.push(Client::open(&url).await?);
    }
    let flights: Vec<SingleFlight> = fleet.iter().map(flight).collect::<leasehold::Result<_>>()?;
    flights[0].invalidate().await?;

    let mut rushes = vec![alone().await];
    rushes.push(rush("one loads for all", &flights, &Source::default()).await?);
    flights[0].invalidate().await?;
    let source = Source::default();
    dies(&fleet[0], &source).await?;
    rushes.push(rush("the first loader dies", &flights, &source).await?);
    tokio::time::sleep(FRESH + Duration::from_millis(500)).await;
    rushes.push(rush("a stale page is there", &flights, &Source::default()).await?);

    println!("{} callers in {CLIENTS} clients, {LOAD:?} to load", CLIENTS * CALLERS);
    println!("{:<24} {:>6} {:>16}", "", "loads", "slowest caller");
    for Rush { what, loads, slowest } in &rushes {
        println!("{what:<24} {loads:>6} {:>13} ms", slowest.as_millis());
    }
    if rushes[1].loads != 1 || rushes[2].loads != 2 || rushes[3].loads > 1 {
        eprintln!("more was loaded than had to be");
        std::process::exit(1);
    }
    Ok(())
}

fn flight(locks: &Client) -> leasehold::Result<SingleFlight> {
    let flight = locks.single_flight("page/42").stale_for(Duration::from_secs(60));
    flight.with(|turn| Ok(turn.ttl(TTL)))
}

/// Lets every caller that does not find the page make it.
async fn alone() -> Rush {
    let source = Source::default();
    let began = Instant::now();
    let callers: Vec<_> = (0..CLIENTS * CALLERS).map(|_| tokio::spawn(source.clone().page())).collect();
    for caller in callers {
        let _ = caller.await;
    }
    Rush { what: "every caller loads", loads: source.0.load(Ordering::SeqCst), slowest: began.elapsed() }
}

/// Lets all callers of all clients request the page at once.
async fn rush(
    what: &'static str,
    flights: &[SingleFlight],
    source: &Source,
) -> Result<Rush, LoadError<String>> {
    let mut callers = Vec::new();
    for flight in flights {
        for _ in 0..CALLERS {
            let (flight, source) = (flight.clone(), source.clone());
            callers.push(tokio::spawn(async move {
                let began = Instant::now();
                let loaded = flight.get_or_load(FRESH, move || source.page()).await;
                loaded.map(|_| began.elapsed())
            }));
        }
    }
    let mut slowest = Duration::ZERO;
    for caller in callers {
        if let Ok(took) = caller.await {
            slowest = slowest.max(took?);
        }
    }
    Ok(Rush { what, loads: source.0.load(Ordering::SeqCst), slowest })
}

/// Lets a client begin to load and fall silent: its lock ends with its lease.
async fn dies(locks: &Client, source: &Source) -> leasehold::Result<()> {
    let wire = Arc::new(Fault::over(locks.backend().clone()));
    let flight = flight(&Client::builder().over(wire.clone())?)?;
    let loading = source.clone();
    let caller =
        tokio::spawn(async move { flight.get_or_load(FRESH, move || loading.page_that_never_comes()).await });
    while source.0.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    wire.set_all(Mode::Hang);
    caller.abort();
    Ok(())
}
