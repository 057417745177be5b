//! A program that takes claims in a process of its own, so that the process can be stopped and killed.
//!
//! The suite starts it and sends it lines over stdin, which it answers on stdout. The author of a backend
//! writes its `main`:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use leasehold_core::{Backend, Failure};
//! # struct Mine;
//! # impl Mine { async fn open(_: &str) -> Result<Arc<dyn Backend>, Failure> { Err(Failure::unavailable("none")) } }
//! fn main() -> std::process::ExitCode {
//!     leasehold_conformance::taker::serve(async |place| Mine::open(place).await)
//! }
//! ```
//!
//! Or it needs no program at all: the test program starts itself again, for the one test that calls
//! [`serve_if_asked`]. See [`TakerCommand::test`](crate::TakerCommand::test).
//!
//! # Protocol
//! One order a line, one answer a line, in order. Answers begin with `taker: `; what else appears on stdout
//! is passed over. Names are written as [`Resource::escaped`] does, shares as `weight/capacity`, times in
//! milliseconds.
//!
//! | order | answers |
//! |---|---|
//! | `contend ID NAME SHARE TTL PATIENCE` | `granted FENCE` (`-` without one), `busy` |
//! | `stand ID NAME SHARE TTL` | `stands`, and takes the claim for as long as the process lives |
//! | `renew ID NAME SHARE TTL` | `renewed`, `alive`, `lost` |
//! | `release ID NAME SHARE TTL` | `freed`, `gone` |
//! | `inspect NAME` | `seen HOLDERS WAITING` |
//!
//! The program begins with `ready`. `failed WHY` answers an order that could not be carried out, and
//! replaces `ready` if the store could not be opened. The program ends when its input does; it renews
//! nothing by itself and releases nothing at its end.

mod driver;
mod order;

use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backend, Clock, Failure, Patience, Proof, Release, Renewal, Resource};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::client::TestClient;
use crate::clock::{SteadyClock, patience_for};
use crate::not_kept::{Checked, NotKept};
pub(crate) use driver::Taker;
use order::Order;

/// Serves orders from stdin until it ends. `open` connects to the store that the suite names.
pub fn serve(open: impl AsyncFn(&str) -> Result<Arc<dyn Backend>, Failure>) -> ExitCode {
    let Ok(store) = std::env::var(STORE_VARIABLE) else {
        eprintln!(
            "{STORE_VARIABLE} is not set: this program is started by the suite of leasehold-conformance"
        );
        return ExitCode::from(64);
    };
    match run(open, &store) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("the taker ends: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Does nothing in an ordinary test run. Where the suite has started the test program as a taker, serves
/// orders and then ends the process. Call it in a test of its own, whose name
/// [`TakerCommand::test`](crate::TakerCommand::test) gets.
pub fn serve_if_asked(open: impl AsyncFn(&str) -> Result<Arc<dyn Backend>, Failure>) {
    let Ok(store) = std::env::var(STORE_VARIABLE) else { return };
    let status = match run(open, &store) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("the taker ends: {why}");
            1
        }
    };
    std::process::exit(status);
}

fn run(open: impl AsyncFn(&str) -> Result<Arc<dyn Backend>, Failure>, store: &str) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SteadyClock::new());
        let backend = match open(store).await {
            Ok(backend) => backend,
            Err(failure) => {
                print_answer("\n", &failed(&failure.clone().into()))?;
                return Err(std::io::Error::other(failure));
            }
        };
        let mut executor = Executor { client: TestClient { backend, clock }, proofs: HashMap::new() };
        // The test harness leaves an unfinished line behind.
        print_answer("\n", "ready")?;
        let mut orders = BufReader::new(tokio::io::stdin()).lines();
        while let Some(order) = orders.next_line().await? {
            let answer = match Order::parse(&order) {
                Ok(order) => executor.execute(order).await,
                Err(why) => Err(NotKept::broken(why)),
            };
            print_answer("", &answer.unwrap_or_else(|stop| failed(&stop)))?;
        }
        Ok(())
    })
}

/// Executes orders, and keeps the proofs of the grants in between.
struct Executor {
    client: TestClient,
    proofs: HashMap<leasehold_core::ClaimId, Proof>,
}

impl Executor {
    async fn execute(&mut self, order: Order) -> Checked<String> {
        match order {
            Order::Contend(claim, wait) => {
                let patience = match wait {
                    Duration::ZERO => Patience::none(self.client.clock.clone()),
                    wait => patience_for(&self.client.clock, wait),
                };
                let Some(taken) = self.client.take(&claim, &patience).await? else {
                    return Ok("busy".to_owned());
                };
                self.proofs.insert(claim.id, taken.grant.proof);
                let fence = taken.grant.fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
                Ok(format!("granted {fence}"))
            }
            Order::Enqueue(claim) => {
                let client = self.client.clone();
                // It ends with the process, with any outcome.
                tokio::spawn(async move {
                    let endless = Patience::unlimited(client.clock.clone());
                    client.take(&claim, &endless).await.map(drop)
                });
                Ok("stands".to_owned())
            }
            Order::Renew(claim) => {
                let proof = self.proofs.get(&claim.id).cloned().unwrap_or_default();
                Ok(match self.client.renew(&claim, &proof).await? {
                    Renewal::Renewed => "renewed".to_owned(),
                    Renewal::Alive => "alive".to_owned(),
                    Renewal::Lost => "lost".to_owned(),
                    Renewal::Unknown(failure) => return Err(failure.into()),
                })
            }
            Order::Release(claim) => {
                self.proofs.remove(&claim.id);
                Ok(match self.client.end(&claim).await? {
                    Release::Freed => "freed".to_owned(),
                    Release::Gone => "gone".to_owned(),
                    Release::Unknown(failure) => return Err(failure.into()),
                })
            }
            Order::Inspect(resource) => {
                let seen = self.client.look(&resource).await?;
                Ok(format!("seen {} {}", seen.holders.len(), seen.waiting.len()))
            }
        }
    }
}

fn failed(stop: &NotKept) -> String {
    format!("failed {stop:?}").replace('\n', " ")
}

fn print_answer(before: &str, answer: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{before}{MARK}{answer}")?;
    out.flush()
}

/// Returns a name as one field.
fn escaped_name(resource: &Resource) -> String {
    resource.escaped(|byte| byte.is_ascii_alphanumeric(), MAX_ESCAPED)
}

const MARK: &str = "taker: ";
const STORE_VARIABLE: &str = "LEASEHOLD_TAKER";
/// Three bytes for each byte of the longest name, so that no name is hashed.
const MAX_ESCAPED: usize = 3 * Resource::MAX_BYTES;
