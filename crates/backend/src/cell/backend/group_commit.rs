//! Group commit: changes that several tasks of this client want at the same time go to the store together,
//! in one commit.
//!
//! To a database a commit costs more than what is in it: a request, a transaction, a wait for the disk. A
//! task that finds a commit under way waits for its end, and goes with all others that did; databases write
//! their own logs in the same way, and call it group commit.
//!
//! Ground rules: only a store that says so is written to in this way. A task that arrives alone waits for no
//! other, and sends its change itself. A second commit runs alongside the first as soon as it has as much to
//! do, where the store has use for two: so it is never idle while this client reads answers. No task waits
//! longer than [`LINGER`] for what others sent: that is slow, and no longer counted. A cell is in a commit
//! once, and cells are in the order of names, so that no two commits wait for one another in a circle. What
//! the store refuses is sent again one by one, so that no change is refused because of another. A cell that
//! was taken for a task that has left is released.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Effect, Failure, FailureKind, Resource};
use leasehold_machine::Unforked;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::cell::cells::{
    CellStore, Locked, Put, Write, WriteAnswer, WriteCondition, WriteOutcome, unwritten, version_for,
};

type WriteResult = Result<WriteOutcome, Failure>;

/// The commits of one client.
#[derive(Debug)]
pub(crate) struct GroupCommit<C>(Arc<Shared<C>>);

#[derive(Debug)]
struct Shared<C> {
    cells: Arc<C>,
    queue: Mutex<CommitQueue>,
}

/// The changes that wait for a commit, and the commits under way.
#[derive(Debug, Default)]
struct CommitQueue {
    /// The most commits at a time, as long as they are quick.
    max_commits: usize,
    waiting: VecDeque<Batch>,
    /// The cells that the waiting tasks want to change.
    cells_waiting: usize,
    /// Commits under way that are not slow, and the cells in them.
    commits: usize,
    cells_under_way: usize,
    /// A number that rises when the commit under way is found to be slow.
    era: u64,
    /// Commits under way, slow or not.
    all_commits: usize,
    /// The rounds that are about to check which tasks wait.
    rounds_starting: usize,
}

/// The changes that one task wants.
#[derive(Debug)]
struct Batch {
    writes: Vec<Write>,
    /// The receiver of the outcome; none, where it only cleans up.
    reply_to: Option<oneshot::Sender<Vec<WriteResult>>>,
}

impl<C: CellStore> GroupCommit<C> {
    pub(crate) fn new(cells: Arc<C>) -> Self {
        let max_commits = cells.commits_at_once().unwrap_or_default();
        let queue = Mutex::new(CommitQueue { max_commits, ..CommitQueue::default() });
        GroupCommit(Arc::new(Shared { cells, queue }))
    }

    /// Makes one write, as [`GroupCommit::write`] does.
    pub(crate) async fn write_one(&self, write: Write) -> WriteResult {
        self.write(vec![write]).await.pop().unwrap_or_else(|| Err(unwritten()))
    }

    /// Makes these writes to cells that this client was the last to write, and answers in order. Each cell
    /// occurs once.
    ///
    /// # Cancel safety
    /// Dropped while it waits for others, nothing was sent. Dropped later, it may have been carried out; a
    /// cell that was taken together with others is released then.
    pub(crate) async fn write(&self, writes: Vec<Write>) -> Vec<WriteResult> {
        let count = writes.len();
        if self.0.cells.commits_at_once().is_none() {
            return commit(&*self.0.cells, &[&writes]).await.pop().unwrap_or_default();
        }
        let mut answer = match self.enter(writes) {
            Entered::Alone(writes, in_flight) => {
                let answers = commit(&*self.0.cells, &[&writes]).await.pop().unwrap_or_default();
                drop(in_flight);
                return answers;
            }
            Entered::Waits(answer) => answer,
        };
        let mut linger = LINGER;
        loop {
            tokio::select! {
                reply = &mut answer => {
                    return reply.unwrap_or_else(|_| (0..count).map(|_| Err(unwritten())).collect());
                }
                () = tokio::time::sleep(linger) => self.0.mark_slow(),
            }
            linger *= 2;
        }
    }

    /// Returns `true` if no commit is under way or waits: no change has others to go with.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.queue().is_idle()
    }

    /// Begins a commit where none is under way, else joins the waiting tasks.
    fn enter(&self, writes: Vec<Write>) -> Entered<C> {
        let mut queue = self.0.queue();
        if queue.is_idle() {
            let in_flight = InFlight::begin(&self.0, &mut queue, writes.len());
            return Entered::Alone(writes, in_flight);
        }
        let (reply_to, answer) = oneshot::channel();
        queue.push(Batch { writes, reply_to: Some(reply_to) });
        self.0.start_round(queue, &Handle::current());
        Entered::Waits(answer)
    }
}

enum Entered<C: CellStore> {
    Alone(Vec<Write>, InFlight<C>),
    Waits(oneshot::Receiver<Vec<WriteResult>>),
}

impl CommitQueue {
    fn is_idle(&self) -> bool {
        self.commits == 0 && self.rounds_starting == 0 && self.waiting.is_empty()
    }

    fn push(&mut self, batch: Batch) {
        self.cells_waiting += batch.writes.len();
        self.waiting.push_back(batch);
    }

    /// Returns `true` if those that wait have no reason to wait any longer.
    fn is_ready(&self) -> bool {
        let is_worth_it = self.commits < self.max_commits && self.cells_waiting >= self.cells_under_way;
        !self.waiting.is_empty() && self.all_commits < MAX_COMMITS && (self.commits == 0 || is_worth_it)
    }

    /// Takes some of those that wait, in the order of their arrival: so many that as much is left for each
    /// commit that may still run alongside.
    fn take(&mut self) -> Vec<Batch> {
        let most =
            self.cells_waiting.div_ceil(self.max_commits.saturating_sub(self.commits).max(1)).min(MAX_CELLS);
        let mut names: HashSet<Resource> = HashSet::new();
        let mut batches = Vec::new();
        while let Some(batch) = self.waiting.pop_front() {
            let is_wanted = batch.reply_to.as_ref().is_none_or(|reply_to| !reply_to.is_closed());
            let fits = batches.is_empty() || names.len() + batch.writes.len() <= most;
            if is_wanted && (!fits || batch.writes.iter().any(|write| names.contains(&write.at))) {
                self.waiting.push_front(batch);
                break;
            }
            self.cells_waiting -= batch.writes.len();
            if is_wanted {
                names.extend(batch.writes.iter().map(|write| write.at.clone()));
                batches.push(batch);
            }
        }
        batches
    }
}

impl<C: CellStore> Shared<C> {
    fn queue(&self) -> MutexGuard<'_, CommitQueue> {
        // The counts are corrected by the tasks that count, on their way out of a panic, too.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a round of commits for the waiting tasks, if it is time.
    fn start_round(self: &Arc<Self>, mut queue: MutexGuard<'_, CommitQueue>, runtime: &Handle) {
        if queue.rounds_starting == 0 && queue.is_ready() {
            queue.rounds_starting += 1;
            // A runtime that has ended drops what it is given, here and now.
            drop(queue);
            drop(runtime.spawn(Unforked::new(Round { shared: self.clone(), is_starting: true }.run())));
        }
    }

    /// Marks the commits under way as slow: waiting tasks no longer wait for them.
    fn mark_slow(self: &Arc<Self>) {
        let mut queue = self.queue();
        if !queue.waiting.is_empty() && queue.rounds_starting == 0 {
            queue.era += 1;
            (queue.commits, queue.cells_under_way) = (0, 0);
            self.start_round(queue, &Handle::current());
        }
    }
}

/// A commit that is under way. Its end lets the tasks that arrived meanwhile start theirs.
struct InFlight<C: CellStore> {
    shared: Arc<Shared<C>>,
    runtime: Handle,
    era: u64,
    cells: usize,
}

impl<C: CellStore> InFlight<C> {
    fn begin(shared: &Arc<Shared<C>>, queue: &mut CommitQueue, cells: usize) -> InFlight<C> {
        queue.all_commits += 1;
        queue.commits += 1;
        queue.cells_under_way += cells;
        InFlight { shared: shared.clone(), runtime: Handle::current(), era: queue.era, cells }
    }
}

impl<C: CellStore> Drop for InFlight<C> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.all_commits -= 1;
        if self.era == queue.era {
            queue.commits -= 1;
            queue.cells_under_way -= self.cells;
        }
        self.shared.start_round(queue, &self.runtime);
    }
}

/// Commits one after the other, for as long as it is time for one.
struct Round<C: CellStore> {
    shared: Arc<Shared<C>>,
    is_starting: bool,
}

impl<C: CellStore> Round<C> {
    async fn run(mut self) {
        while let Some((batches, in_flight)) = self.next() {
            let wanted: Vec<&Vec<Write>> = batches.iter().map(|batch| &batch.writes).collect();
            let answers = commit(&*self.shared.cells, &wanted).await;
            self.restart();
            drop(in_flight);
            for (batch, answers) in batches.into_iter().zip(answers) {
                let Some(reply_to) = batch.reply_to else { continue };
                if let Err(answers) = reply_to.send(answers) {
                    self.release_unclaimed(&batch.writes, &answers);
                }
            }
            // The tasks that were answered may now send their next requests.
            tokio::task::yield_now().await;
        }
    }

    fn next(&mut self) -> Option<(Vec<Batch>, InFlight<C>)> {
        let mut queue = self.shared.queue();
        queue.rounds_starting -= 1;
        self.is_starting = false;
        if !queue.is_ready() {
            return None;
        }
        let batches = queue.take();
        let cells: usize = batches.iter().map(|batch| batch.writes.len()).sum();
        if cells == 0 {
            return None;
        }
        let in_flight = InFlight::begin(&self.shared, &mut queue, cells);
        self.shared.start_round(queue, &Handle::current());
        Some((batches, in_flight))
    }

    fn restart(&mut self) {
        self.shared.queue().rounds_starting += 1;
        self.is_starting = true;
    }

    /// Releases what was taken for a task that has left, of which no other task knows: the task's own release
    /// may have been sent before it.
    fn release_unclaimed(&self, writes: &[Write], answers: &[WriteResult]) {
        let taken =
            writes.iter().zip(answers).filter(|(write, _)| matches!(write.when, WriteCondition::Emptied(_)));
        let back = taken.filter_map(|(write, answer)| {
            let Ok(WriteOutcome::Written { fence, .. }) = answer else { return None };
            let when = WriteCondition::Living { version: write.put.version, epoch: None };
            Some(Write {
                at: write.at.clone(),
                when,
                put: Put::nothing(*fence, version_for(&*self.shared.cells).ok()?),
                answer: WriteAnswer::Brief,
            })
        });
        let writes: Vec<Write> = back.collect();
        if !writes.is_empty() {
            self.shared.queue().push(Batch { writes, reply_to: None });
        }
    }
}

impl<C: CellStore> Drop for Round<C> {
    fn drop(&mut self) {
        // The runtime has ended. Those that wait in another one end by themselves.
        if self.is_starting {
            self.shared.queue().rounds_starting -= 1;
        }
    }
}

/// Makes all changes in one commit, and answers in the order in which they are given.
async fn commit<C: CellStore>(cells: &C, wanted: &[&Vec<Write>]) -> Vec<Vec<WriteResult>> {
    if let [one] = wanted
        && let [write] = one.as_slice()
    {
        let results = cells.write(&[write], Locked::Wait).await;
        return vec![if results.is_empty() { vec![Err(unwritten())] } else { results }];
    }
    let mut writes: Vec<(&Write, usize, usize)> = Vec::new();
    for (batch, some) in wanted.iter().enumerate() {
        writes.extend(some.iter().enumerate().map(|(at, write)| (write, batch, at)));
    }
    writes.sort_by(|(one, ..), (other, ..)| one.at.cmp(&other.at));
    let sent: Vec<&Write> = writes.iter().map(|(write, ..)| *write).collect();
    let mut results = cells.write(&sent, Locked::Wait).await;
    if sent.len() > 1 && results.iter().all(is_refused) {
        // One of them may be what the store does not take, such as a note that it cannot write: the others
        // have no part in it.
        results.clear();
        for write in &sent {
            results.extend(cells.write(&[write], Locked::Wait).await);
        }
    }
    let mut answers: Vec<Vec<WriteResult>> =
        wanted.iter().map(|some| some.iter().map(|_| Err(unwritten())).collect()).collect();
    for ((_, batch, at), result) in writes.into_iter().zip(results) {
        answers[batch][at] = result;
    }
    answers
}

/// Returns `true` if the change was not made, and never can be.
fn is_refused(result: &WriteResult) -> bool {
    let never = |failure: &Failure| failure.kind == FailureKind::Invalid && failure.effect == Effect::None;
    result.as_ref().is_err_and(never)
}

/// The most that are under way, however slow.
const MAX_COMMITS: usize = 8;
/// The time for which waiting changes may be kept from running alongside what is under way.
const LINGER: Duration = Duration::from_millis(1);
/// The most cells of one commit.
const MAX_CELLS: usize = 100;

#[cfg(test)]
mod tests {
    use leasehold_core::Fence;

    use super::*;

    type Tasks = Vec<oneshot::Receiver<Vec<WriteResult>>>;

    /// Returns the queue of tasks that each want to change these cells.
    fn waiting(max_commits: usize, wanted: &[&[&str]]) -> (CommitQueue, Tasks) {
        let mut queue = CommitQueue { max_commits, ..CommitQueue::default() };
        let tasks = wanted.iter().map(|cells| {
            let write = |name: &&str| Write {
                at: Resource::new(name).unwrap(),
                when: WriteCondition::Emptied(1),
                put: Put::nothing(Fence::default(), 2),
                answer: WriteAnswer::Brief,
            };
            let (reply_to, answer) = oneshot::channel();
            queue.push(Batch { writes: cells.iter().map(write).collect(), reply_to: Some(reply_to) });
            answer
        });
        let tasks = tasks.collect();
        (queue, tasks)
    }

    /// Takes a commit, and returns the names of its cells with the number of those that still wait.
    fn taken(queue: &mut CommitQueue) -> (String, usize) {
        let names = queue.take().into_iter().flat_map(|batch| batch.writes);
        (names.map(|write| write.at.as_str().to_owned()).collect(), queue.cells_waiting)
    }

    #[test]
    fn commit_takes_no_more_than_its_share() {
        let (mut queue, _tasks) = waiting(2, &[&["a"], &["b", "c"], &["d", "e"], &["f"]]);
        assert_eq!(taken(&mut queue), ("abc".to_owned(), 3));
        assert_eq!(taken(&mut queue), ("de".to_owned(), 1));
        assert_eq!(taken(&mut queue), ("f".to_owned(), 0));
        let names: Vec<String> = (0..=MAX_CELLS).map(|n| n.to_string()).collect();
        let names: Vec<[&str; 1]> = names.iter().map(|name| [name.as_str()]).collect();
        let (mut queue, _tasks) = waiting(1, &names.iter().map(|name| name.as_slice()).collect::<Vec<_>>());
        assert_eq!((queue.take().len(), queue.cells_waiting), (MAX_CELLS, 1));
    }

    #[test]
    fn cell_is_in_a_commit_once() {
        let (mut queue, _tasks) = waiting(1, &[&["a"], &["b"], &["c", "a"], &["d"]]);
        assert_eq!(taken(&mut queue), ("ab".to_owned(), 3));
        assert_eq!(taken(&mut queue), ("cad".to_owned(), 0));
    }

    #[test]
    fn change_of_a_task_that_has_left_is_not_taken() {
        let (mut queue, mut tasks) = waiting(1, &[&["a"], &["b"], &["c"]]);
        drop(tasks.remove(1));
        assert_eq!(taken(&mut queue), ("ac".to_owned(), 0));
    }

    #[test]
    fn second_commit_runs_alongside_if_it_has_as_much_to_do() {
        for (commits, all_commits, cells, is_ready) in [
            (0, 0, 0, false),
            (0, 0, 1, true),
            (1, 1, 2, false),
            (1, 1, 3, true),
            (1, MAX_COMMITS - 1, 3, true),
            (1, MAX_COMMITS, 3, false),
            (2, 2, 3, false),
        ] {
            let wanted: [&[&str]; 3] = [&["a"], &["b"], &["c"]];
            let (queue, _tasks) = waiting(2, &wanted[..cells]);
            let queue = CommitQueue { commits, all_commits, cells_under_way: 3, ..queue };
            assert_eq!(queue.is_ready(), is_ready, "{queue:?}");
        }
    }
}
