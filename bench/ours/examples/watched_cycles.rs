//! So many acquires and releases on the memory store and nothing else, for a program that counts
//! instructions.
//!
//! `watched_cycles nobody|idle|metrics CYCLES`, for example under `valgrind --tool=callgrind`. One
//! thread, no timer that comes due, and a clock that only counts how often it is read, so two runs of a
//! build differ by next to nothing. Run it with two numbers of cycles and divide the difference: the
//! cost of beginning and ending is not in it then.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::layer::Metrics;
use leasehold::local::MemoryBackend;
use leasehold::{Client, Clock, Event, EventSubscriber, Moment};

/// A microsecond later each time it is read.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Clock for Counting {
    fn now(&self) -> Moment {
        Moment::from_nanos(1_000_000_000 + 1_000 * self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// A recorder that does nothing with what it gets.
#[derive(Debug)]
struct Idle;

impl EventSubscriber for Idle {
    fn on_event(&self, event: &Event<'_>) {
        std::hint::black_box(event);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, cycles] = arguments.as_slice() else { return Err(USAGE.into()) };
    let clock = Arc::new(Counting::default());
    let builder = Client::builder().clock(clock.clone());
    let builder = match mode.as_str() {
        "nobody" => builder,
        "idle" => builder.subscriber(Arc::new(Idle)),
        "metrics" => builder.subscriber(Arc::new(Metrics::new())),
        _ => return Err(USAGE.into()),
    };
    let locks = builder.over(Arc::new(MemoryBackend::with_clock(clock.clone())))?;
    let mutex = locks.mutex("watched");
    for _ in 0..cycles.parse::<u32>()? {
        mutex.lock().await?.release().await?;
    }
    println!("the clock was read {} times", clock.0.load(Ordering::Relaxed));
    Ok(())
}

const USAGE: &str = "usage: watched_cycles nobody|idle|metrics CYCLES";
