//! A flash sale: more buyers than pieces, all at once, and nothing may be sold twice.
//!
//! The stock is split over the stripes of one lock. An order locks a stripe, reads how many pieces are
//! left, takes some time, and writes one less: without the lock, pieces would be sold twice. With one
//! stripe orders are served one at a time; with twelve, twelve at a time.
//!
//! ```console
//! $ cargo run --release -p leasehold --example flash_sale                        # in memory
//! $ cargo run --release -p leasehold --example flash_sale redis://127.0.0.1      # over a server
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, StripedMutex};

const PIECES: u32 = 1_200;
const BUYERS: u32 = 2_000;
/// The time for which an order keeps its stripe locked: a payment, a row in a database.
const ORDER: Duration = Duration::from_millis(2);

/// The result of one sale.
struct Sale {
    stripes: u32,
    sold: u32,
    left: u32,
    took: Duration,
    contention: f64,
    recommended: Option<u32>,
}

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "mem:".to_owned());
    let locks = Client::open(&url).await?;
    let mut sales = Vec::new();
    for stripes in [1, 12, 120] {
        sales.push(sell(&locks, stripes).await?);
    }
    print!("{}", table(&sales));
    print!("\n{}", plot(&sales));
    if let Some(sale) = sales.iter().find(|sale| sale.sold != PIECES || sale.left != 0) {
        eprintln!(
            "{} stripes: {} pieces were sold of {PIECES}, {} are left",
            sale.stripes, sale.sold, sale.left
        );
        std::process::exit(1);
    }
    Ok(())
}

/// Sells the whole stock to more buyers than there are pieces.
async fn sell(locks: &Client, stripes: u32) -> leasehold::Result<Sale> {
    let lock = locks.striped_mutex(format!("flash-sale/{stripes}"), stripes);
    let stock: Arc<Vec<AtomicU32>> =
        Arc::new((0..stripes).map(|_| AtomicU32::new(PIECES / stripes)).collect());
    let began = Instant::now();
    let mut buyers = Vec::new();
    for buyer in 0..BUYERS {
        buyers.push(tokio::spawn(buy(lock.clone(), stock.clone(), buyer)));
    }
    let mut sold = 0;
    for buyer in buyers {
        // A buyer that panicked has bought nothing; the count shows it.
        sold += u32::from(buyer.await.unwrap_or(Ok(false))?);
    }
    let report = lock.report();
    Ok(Sale {
        stripes,
        sold,
        left: stock.iter().map(|pieces| pieces.load(Ordering::SeqCst)).sum(),
        took: began.elapsed(),
        contention: report.contention(),
        recommended: report.recommended(),
    })
}

/// Buys one piece: from the buyer's own stripe, or from the next one that has any.
async fn buy(lock: StripedMutex, stock: Arc<Vec<AtomicU32>>, buyer: u32) -> leasehold::Result<bool> {
    let first = lock.for_key(format!("buyer/{buyer}")).number();
    for step in 0..lock.count() {
        let stripe = lock.stripe(first + step);
        let pieces = &stock[stripe.number() as usize];
        // A look before the lock is only a look: it saves a wait for what is gone, and decides nothing.
        if pieces.load(Ordering::SeqCst) == 0 {
            continue;
        }
        let guard = stripe.lock().await?;
        let left = pieces.load(Ordering::SeqCst);
        if left > 0 {
            tokio::time::sleep(ORDER).await;
            guard.check()?;
            pieces.store(left - 1, Ordering::SeqCst);
        }
        guard.release().await?;
        if left > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn rate(sale: &Sale) -> f64 {
    f64::from(sale.sold) / sale.took.as_secs_f64()
}

fn table(sales: &[Sale]) -> String {
    let mut table = "stripes    sold  left  seconds  orders/s  found taken  would do for 5 %\n".to_owned();
    for sale in sales {
        let recommended = sale.recommended.map_or_else(|| "-".to_owned(), |count| count.to_string());
        table += &format!(
            "{:>8}  {:>6}  {:>4}  {:>7.2}  {:>8.0}  {:>9.1} %  {recommended:>16}\n",
            sale.stripes,
            sale.sold,
            sale.left,
            sale.took.as_secs_f64(),
            rate(sale),
            100.0 * sale.contention,
        );
    }
    table
}

/// Orders per second as bars, the longest of them as wide as a terminal.
fn plot(sales: &[Sale]) -> String {
    let most = sales.iter().map(rate).fold(1.0, f64::max);
    let bar = |sale: &Sale| {
        let width = (60.0 * rate(sale) / most).round().max(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 60")]
        let width = width as usize;
        format!("{:>8} |{} {:.0}/s\n", sale.stripes, "#".repeat(width), rate(sale))
    };
    sales.iter().map(bar).collect()
}
