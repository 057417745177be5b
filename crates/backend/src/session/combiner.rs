//! Requests of several tasks go to the server together, as many as have come while the last ones were under
//! way.
//!
//! Ground rules: a task that comes alone sends its request itself, at once. A task that leaves before its
//! request was sent takes it along; one that leaves while it has the right to send passes that on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The requests `Q` of several tasks, which are answered by `A`.
#[derive(Debug)]
pub struct Combiner<Q, A>(Shared<Q, A>);

type Shared<Q, A> = Arc<Mutex<State<Q, A>>>;

#[derive(Debug)]
struct State<Q, A> {
    waiting: VecDeque<Waiting<Q, A>>,
    /// `true` while a task has the right to send.
    is_taken: bool,
}

#[derive(Debug)]
struct Waiting<Q, A> {
    request: Q,
    reply: oneshot::Sender<Reply<Q, A>>,
}

/// A message to a task that waits.
#[derive(Debug)]
enum Reply<Q, A> {
    Answer(A),
    /// The right to send, with its own request.
    Right(SendRight<Q, A>, Q),
}

/// The next step of a request that has just arrived.
#[derive(Debug)]
enum Entry<Q, A> {
    Sends(SendRight<Q, A>, Q),
    Waits(oneshot::Receiver<Reply<Q, A>>),
}

/// The right to send what waits. It is passed on when it is dropped.
#[derive(Debug)]
struct SendRight<Q, A>(Option<Shared<Q, A>>);

impl<Q, A> Default for Combiner<Q, A> {
    fn default() -> Self {
        Combiner(Arc::new(Mutex::new(State { waiting: VecDeque::new(), is_taken: false })))
    }
}

impl<Q: Send, A: Send> Combiner<Q, A> {
    /// Sends the request, together with others, by `send` of one of their tasks, and returns its answer.
    /// `send` gets at most `most` requests and returns as many answers, in their order. `None` if the task
    /// that sent it left, or sent too few answers: the fate of the request is not known.
    ///
    /// # Cancel safety
    /// Dropping the future drops a request that was not sent. Else it drops the future of `send`, if it is
    /// this task's.
    pub async fn ask<F>(&self, request: Q, most: usize, send: impl FnOnce(Vec<Q>) -> F) -> Option<A>
    where
        F: Future<Output = Vec<A>>,
    {
        let (right, request) = match self.enter(request) {
            Entry::Sends(right, request) => (right, request),
            Entry::Waits(reply) => match reply.await.ok()? {
                Reply::Answer(answer) => return Some(answer),
                Reply::Right(right, request) => (right, request),
            },
        };
        let (mut requests, mut replies) = (vec![request], Vec::new());
        {
            let mut state = lock(&self.0);
            while requests.len() < most {
                let Some(Waiting { request, reply }) = state.waiting.pop_front() else { break };
                // The task that asked may have left.
                if !reply.is_closed() {
                    requests.push(request);
                    replies.push(reply);
                }
            }
        }
        let mut answers = send(requests).await.into_iter();
        let own = answers.next();
        for (reply, answer) in replies.into_iter().zip(answers) {
            // A task that left meanwhile wants no answer.
            _ = reply.send(Reply::Answer(answer));
        }
        drop(right);
        own
    }

    /// Takes the right to send the request, or leaves the request to the task that has it.
    fn enter(&self, request: Q) -> Entry<Q, A> {
        let mut state = lock(&self.0);
        if !state.is_taken {
            state.is_taken = true;
            return Entry::Sends(SendRight(Some(self.0.clone())), request);
        }
        let (reply, replied) = oneshot::channel();
        state.waiting.push_back(Waiting { request, reply });
        Entry::Waits(replied)
    }
}

fn lock<Q, A>(shared: &Shared<Q, A>) -> MutexGuard<'_, State<Q, A>> {
    // Every change is complete before anything can panic.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<Q, A> Drop for SendRight<Q, A> {
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        // Bounded by the tasks that wait.
        loop {
            let next = {
                let mut state = lock(&shared);
                let next = state.waiting.pop_front();
                state.is_taken = next.is_some();
                next
            };
            let Some(Waiting { request, reply }) = next else { return };
            match reply.send(Reply::Right(SendRight(Some(shared.clone())), request)) {
                Ok(()) => return,
                // It left. The right is still here.
                Err(Reply::Right(mut right, _)) => right.0 = None,
                Err(Reply::Answer(_)) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    type Numbers = Combiner<u32, u32>;

    /// Answers each request with the double, after a millisecond.
    async fn double(requests: Vec<u32>, sent: &AtomicUsize) -> Vec<u32> {
        sent.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        requests.into_iter().map(|request| 2 * request).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_task_gets_its_answer_and_few_requests_are_sent() {
        let (numbers, sent) = (Arc::new(Numbers::default()), Arc::new(AtomicUsize::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..64 {
            let (numbers, sent) = (numbers.clone(), sent.clone());
            tasks.spawn(async move {
                for n in 0..20 {
                    let request = task * 100 + n;
                    let answer = numbers.ask(request, 50, |all| double(all, &sent)).await;
                    assert_eq!(answer, Some(2 * request));
                }
            });
        }
        tasks.join_all().await;
        let sent = sent.load(Ordering::SeqCst);
        assert!(sent < 640, "{sent} for 1,280 requests");
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_requests_are_sent_together() {
        let (numbers, most, sent) = (Numbers::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let ask = |request| {
            numbers.ask(request, 2, |all| {
                most.fetch_max(all.len(), Ordering::SeqCst);
                double(all, &sent)
            })
        };
        let answers = futures_util::future::join_all((0..6).map(ask)).await;
        assert_eq!(answers.into_iter().flatten().collect::<Vec<_>>(), [0, 2, 4, 6, 8, 10]);
        assert_eq!((most.load(Ordering::SeqCst), sent.load(Ordering::SeqCst)), (2, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn task_that_leaves_passes_the_right_to_send_on() {
        let (numbers, sent) = (Numbers::default(), AtomicUsize::new(0));
        let ask = |request| numbers.ask(request, 50, |all| double(all, &sent));
        for left in 0..3 {
            let mut tasks: Vec<_> = (0..4).map(|request| Box::pin(ask(request))).collect();
            for task in &mut tasks {
                assert!(task.as_mut().now_or_never().is_none());
            }
            // One that sends, one that has the right and has not noticed yet, and both.
            match left {
                0 => drop(tasks.remove(0)),
                1 => drop(tasks.drain(..2)),
                _ => drop(tasks.remove(1)),
            }
            let answers = futures_util::future::join_all(tasks).await;
            let expected: &[u32] = [&[2, 4, 6][..], &[4, 6], &[0, 4, 6]][left];
            assert_eq!(answers.into_iter().flatten().collect::<Vec<_>>(), expected);
        }
        assert_eq!(ask(7).await, Some(14), "the right is left");
    }

    #[tokio::test(start_paused = true)]
    async fn request_whose_sender_left_has_no_answer() {
        let (numbers, sent) = (Numbers::default(), AtomicUsize::new(0));
        let ask = |request| numbers.ask(request, 50, |all| double(all, &sent));
        let (mut first, mut second, mut third) = (Box::pin(ask(1)), Box::pin(ask(2)), Box::pin(ask(3)));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        assert_eq!(first.await, Some(2));
        // It sends for both.
        assert!(second.as_mut().now_or_never().is_none());
        drop(second);
        assert_eq!(third.await, None);
        assert_eq!(ask(4).await, Some(8));
    }
}
