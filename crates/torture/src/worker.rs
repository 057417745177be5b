//! A worker: the process that takes the locks, and reports over its standard output what it sees.
//!
//! Ground rules: the standard output belongs to the events. An invocation is on its way to the rig before anything of
//! the operation can happen, so a killed worker has no effect that the history does not explain.

use std::io::{self, BufRead, Write};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Client, ClientBuilder};
use leasehold_history::Event;
use tokio::sync::watch;

use crate::clock::{WorkerClock, now};
use crate::plan::{LockKind, Plan};
use crate::wire::{Assignment, Done, Facts, Message, Order};

mod task;

/// Runs a worker: reads its plan from the standard input, and ends when that is closed.
///
/// A program that starts a [`Rig`](crate::Rig) calls this if it is started with the arguments of
/// [`Program`](crate::Program), before it has threads and a runtime of its own.
pub fn run() -> ExitCode {
    run_with(|url, builder| Box::pin(builder.open(url)))
}

/// A function that opens the store of a worker by its URL, for a client of this builder.
pub type Opener = for<'a> fn(
    &'a str,
    ClientBuilder,
) -> Pin<Box<dyn Future<Output = leasehold::Result<Client>> + Send + 'a>>;

/// Runs a worker as [`run`] does, over clients that `opener` makes: a test of the checker opens such that are
/// broken on purpose.
pub fn run_with(opener: Opener) -> ExitCode {
    die_with_the_rig();
    end_at_a_panic();
    match work(opener) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The rig keeps the last lines of this stream.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Asks the kernel to kill this process if its rig is killed while this one is stopped, and cannot see it.
fn die_with_the_rig() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// Ends the process when any task or thread panics: the runtime would hide it, and the rig sees such an end.
fn end_at_a_panic() {
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        shown(panic);
        std::process::exit(101);
    }));
}

fn work(opener: Opener) -> io::Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let assignment: Assignment = serde_json::from_str(&line)?;
    let clock = Arc::<WorkerClock>::default();
    let (over, until) = watch::channel(false);
    let own = clock.clone();
    std::thread::Builder::new().name("orders".into()).spawn(move || {
        // The end of the stream is the order to end, and so is what cannot be read or answered.
        let _ = follow(io::stdin().lock(), &own);
        let _ = over.send(true);
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worked = runtime.block_on(serve(Arc::new(assignment), clock, until, opener));
    runtime.shutdown_background();
    worked
}

/// Does with the clocks as the rig says, and reports when that was done.
fn follow(orders: impl BufRead, clock: &WorkerClock) -> io::Result<()> {
    for line in orders.lines() {
        let done = match serde_json::from_str(&line?)? {
            Order::Change(change) => {
                clock.change(change);
                Done::Changed(change)
            }
            Order::ReadTime => {
                Done::Time(SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?)
            }
        };
        send(&Message::Done(done))?;
    }
    Ok(())
}

async fn serve(
    assignment: Arc<Assignment>,
    clock: Arc<WorkerClock>,
    until: watch::Receiver<bool>,
    opener: Opener,
) -> io::Result<()> {
    let Some(client) = open(&assignment, &clock, until.clone(), opener).await? else { return Ok(()) };
    send(&Message::Ready(facts(&client, &assignment.plan)))?;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..assignment.plan.all_tasks() {
        let (client, clock) = (client.clone(), clock.clone());
        tasks.spawn(task::run(client, clock, assignment.clone(), number as u64, until.clone()));
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(io::Error::other)??;
    }
    client.close(CLOSING).await;
    Ok(())
}

/// Opens the store; `None` if the worker has to end before it could.
async fn open(
    assignment: &Assignment,
    clock: &Arc<WorkerClock>,
    mut until: watch::Receiver<bool>,
    opener: Opener,
) -> io::Result<Option<Client>> {
    loop {
        let builder = match assignment.plan.own_clocks {
            true => Client::builder().clock(clock.clone()),
            false => Client::builder(),
        };
        let error = match opener(assignment.plan.url_of(assignment.worker), builder).await {
            Ok(client) => return Ok(Some(client)),
            Err(error) => error,
        };
        send(&Message::Failed(error.to_string()))?;
        if !assignment.is_patient {
            return Ok(None);
        }
        tokio::select! {
            _ = until.wait_for(|over| *over) => return Ok(None),
            () = tokio::time::sleep(BETWEEN_TRIES) => {}
        }
    }
}

/// Returns what the rig has to know about the store.
pub(crate) fn facts(client: &Client, plan: &Plan) -> Facts {
    let profile = client.profile();
    let ttl = client.mutex("ttl").ttl(plan.ttl).effective_ttl();
    let stays = ttl.unwrap_or_default().max(profile.place_ttl) + profile.overrun;
    let locks = plan.all_locks();
    let unsupported = locks.iter().filter_map(|lock| supports(client, lock.kind).err());
    Facts {
        store: profile.name.to_owned(),
        grade: profile.fencing.to_string(),
        ttl,
        stays,
        is_ordered: profile.order == leasehold::QueueOrder::Fifo,
        unsupported: unsupported.collect(),
    }
}

/// Checks that the store has locks of this kind.
pub(crate) fn supports(client: &Client, kind: LockKind) -> Result<(), String> {
    let share = match kind {
        LockKind::Mutex => leasehold::Share::MUTEX,
        LockKind::ReadWrite => leasehold::Share::WRITER,
        LockKind::Semaphore(of) => match leasehold::Share::permits(1, of) {
            Ok(share) => share,
            // The first acquisition says what is wrong with it.
            Err(_) => return Ok(()),
        },
    };
    client.profile().admits(share).map_err(|unmet| unmet.to_string())
}

/// Sends a message to the rig, and returns when it is in the pipe.
pub(crate) fn send(message: &Message) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

/// Stamps an event and sends it.
pub(crate) fn send_event(mut event: Event) -> io::Result<()> {
    event.stamped = Some(now());
    send(&Message::Event(Box::new(event)))
}

const CLOSING: Duration = Duration::from_secs(5);
const BETWEEN_TRIES: Duration = Duration::from_millis(500);
