//! One connection, shared by simultaneous requests: they are sent together, and answers come back in the
//! order of the requests.
//!
//! A request on an idle connection is written by its caller, who also reads the answers: a task in between costs as
//! much as the request. As soon as there is another request, or the caller leaves, the task of the connection takes
//! over. It writes what is queued, reads the answers, and hands them out.
//!
//! Ground rules: every request learns whether it left this process. One whose time is over before it left
//! never leaves; one whose time is over afterwards ends the connection, since a server that owes an answer is
//! not to be trusted with the next. One whose caller is dropped is sent all the same, and its answer is read.
//! Answers that carry a mark must carry the right one. No request depends on the caller of another one, who may never
//! be polled again.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::net::wire::{
    Answer, Driven, Duplex, Expected, NoAnswer, Request, Shared, State, Turn, Wire, unwoken, wake,
};
use crate::protocol::command::{Command, MAX_VALUE};
use crate::protocol::facts::Facts;
use crate::protocol::reply::Reply;

/// One connection to one process of a server.
#[derive(Debug)]
pub(crate) struct Link {
    /// The facts that the server reported when the connection was made.
    pub(crate) facts: Facts,
    shared: Arc<Shared>,
    marks: AtomicU32,
}

impl Link {
    /// Takes over a stream that is logged in, and on which nothing is owed.
    pub(crate) fn new(stream: Box<dyn Duplex>, facts: Facts) -> Link {
        let shared = Arc::new(Shared::new(Wire::new(stream)));
        drop(leasehold_machine::spawn(Driver { shared: shared.clone() }));
        Link { facts, shared, marks: AtomicU32::new(1) }
    }

    /// Returns `true` if it can take more requests. The end of an idle connection is noticed here.
    pub(crate) fn is_usable(&self) -> bool {
        if self.shared.is_forked() {
            return false;
        }
        let turn = {
            let mut state = self.shared.lock();
            if state.has_ended {
                return false;
            }
            if state.is_idle() { Turn::take(&self.shared, &mut state) } else { None }
        };
        let Some(mut turn) = turn else { return true };
        // Nothing was asked, so nothing may come.
        if !turn.wire.is_silent() {
            turn.end();
            return false;
        }
        turn.put_back(State::needed_driver)
    }

    /// Sends these commands in one go, and waits for all their answers.
    pub(crate) async fn ask(
        &self,
        commands: &[Command<'_>],
        limit: Duration,
    ) -> Result<Vec<Reply>, NoAnswer> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        match self.send(commands) {
            Some(sent) => sent.within(limit).await,
            None => Err(NoAnswer::Unsent),
        }
    }

    /// Sends these commands in one go, at once, and returns their answers; `None` where the connection takes none.
    ///
    /// # Cancel safety
    /// They are sent, even if the future is dropped.
    pub(crate) fn send(&self, commands: &[Command<'_>]) -> Option<Sent> {
        if self.shared.is_forked() {
            return None;
        }
        let first = self.marks.fetch_add(commands.len() as u32, Ordering::Relaxed);
        let mut bytes = Vec::with_capacity(commands.iter().map(Command::length).sum());
        for (mark, command) in commands.iter().enumerate() {
            command.write(first.wrapping_add(mark as u32), &mut bytes);
        }
        let (answer, answered) = oneshot::channel();
        let request = Request { bytes, expected: Expected { first, count: commands.len(), answer } };
        let (turn, driver) = {
            let mut state = self.shared.lock();
            if !state.takes_more() {
                return None;
            }
            let is_idle = state.is_idle();
            state.push(request);
            let turn = if is_idle { Turn::take(&self.shared, &mut state) } else { None };
            state.caller = turn.as_ref().map(|_| first);
            let driver = if turn.is_none() { state.driver.take() } else { None };
            (turn, driver)
        };
        wake(driver);
        if let Some(mut turn) = turn {
            match turn.wire.write(&self.shared, &mut unwoken()) {
                Poll::Ready(Ok(())) => _ = turn.put_back(State::needed_driver),
                // The task of the connection writes the rest.
                Poll::Pending => {
                    turn.put_back(|state| {
                        state.caller = None;
                        state.driver.take()
                    });
                }
                Poll::Ready(Err(_)) => turn.end(),
            }
        }
        Some(Sent { shared: self.shared.clone(), first, answered })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// The answers to a request, once they arrive.
#[derive(Debug)]
pub(crate) struct Sent {
    shared: Arc<Shared>,
    first: u32,
    answered: oneshot::Receiver<Answer>,
}

impl Sent {
    /// Waits for the answers for so long. Then the request is taken back, or else the connection ends.
    pub(crate) async fn within(mut self, limit: Duration) -> Answer {
        match tokio::time::timeout(limit, &mut self).await {
            Ok(answer) => answer,
            Err(_) if self.shared.take_back(self.first) => Err(NoAnswer::Unsent),
            Err(_) => self.arrived().unwrap_or_else(|| {
                self.shared.end();
                Err(NoAnswer::Late)
            }),
        }
    }

    /// Returns answers that arrived while this caller was not polled, maybe for longer than its limit.
    fn arrived(&mut self) -> Option<Answer> {
        let turn = Turn::take(&self.shared, &mut self.shared.lock());
        if let Some(mut turn) = turn {
            let read = poll_fn(|context| Poll::Ready(turn.wire.read(&self.shared, context)));
            match pin!(tokio::task::unconstrained(read)).poll(&mut unwoken()) {
                Poll::Ready(Poll::Ready(Err(_))) => turn.end(),
                // It was this read that would have woken the task of the connection.
                _ => _ = turn.put_back(|state| state.driver.take()),
            }
        }
        self.answered.try_recv().ok()
    }

    fn receive(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        Pin::new(&mut self.answered).poll(context).map(|answer| answer.unwrap_or(Err(NoAnswer::Broken)))
    }

    /// Reads the answers, if that is left to this caller.
    fn read(&self, context: &mut Context<'_>) {
        let turn = {
            let mut state = self.shared.lock();
            if state.caller == Some(self.first) { Turn::take(&self.shared, &mut state) } else { None }
        };
        let Some(mut turn) = turn else { return };
        loop {
            match turn.wire.read(&self.shared, context) {
                // Some of the answers.
                Poll::Ready(Ok(())) if turn.wire.answered == 0 => {}
                Poll::Ready(Ok(())) | Poll::Pending => break,
                Poll::Ready(Err(_)) => return turn.end(),
            }
        }
        turn.put_back(|state| {
            // What was sent meanwhile is left to the task of the connection already.
            let is_over = state.expected.is_empty();
            state.caller.take_if(|caller| *caller == self.first && is_over);
            state.needed_driver()
        });
    }
}

impl Future for Sent {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        if self.shared.is_forked() {
            return Poll::Pending;
        }
        // What this caller hands out to itself must not wake it: a task that is woken while it runs wakes another thread.
        if let Poll::Ready(answer) = self.receive(&mut unwoken()) {
            return Poll::Ready(answer);
        }
        self.read(context);
        // Another task may hand the answers out.
        self.receive(context)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        wake({
            let mut state = self.shared.lock();
            let is_left = state.caller.take_if(|caller| *caller == self.first).is_some();
            if is_left { state.driver.take() } else { None }
        });
    }
}

/// The task of the connection, which ends when the task ends or is dropped.
struct Driver {
    shared: Arc<Shared>,
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let turn = {
                let mut state = self.shared.lock();
                if state.has_ended {
                    return Poll::Ready(());
                }
                let turn = if state.caller.is_none() { Turn::take(&self.shared, &mut state) } else { None };
                if turn.is_none() {
                    // Its user wakes this task if there is more to do.
                    state.driver = Some(context.waker().clone());
                }
                turn
            };
            let Some(mut turn) = turn else { return Poll::Pending };
            let mut has_more = false;
            let is_open = match turn.wire.drive(&self.shared, context) {
                Ok(Driven::Yields) => {
                    // Woken while it runs, a task has its next turn after all that are ready.
                    context.waker().wake_by_ref();
                    turn.put_back(|_| None)
                }
                Ok(Driven::Waits { is_full }) => turn.put_back(|state| {
                    has_more = !is_full && !state.unwritten.is_empty();
                    state.driver = (!has_more).then(|| context.waker().clone());
                    None
                }),
                Err(_) => {
                    turn.end();
                    false
                }
            };
            if !is_open {
                return Poll::Ready(());
            }
            if !has_more {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// The most bytes of one request, which carries so many values of the largest size; see
/// [`crate::net::servers`].
pub(crate) const MAX_REQUEST: usize = 4 * MAX_VALUE;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::net::wire::READ_SIZE;
    use crate::protocol::command::Key;

    const LIMIT: Duration = Duration::from_millis(200);

    fn facts() -> Facts {
        let stats = [("version", "1"), ("time", "9"), ("uptime", "9")];
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Facts::read(stats.map(owned).to_vec(), Vec::new()).unwrap()
    }

    fn link() -> (Link, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        (Link::new(Box::new(ours), facts()), theirs)
    }

    async fn received(server: &mut tokio::io::DuplexStream) -> String {
        let mut bytes = vec![0; 4096];
        let length = server.read(&mut bytes).await.unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Receives so many requests.
    async fn requests(server: &mut tokio::io::DuplexStream, count: usize) -> String {
        let mut all = String::new();
        while all.matches("\r\n").count() < count {
            all += &received(server).await;
        }
        all
    }

    #[tokio::test]
    async fn fragmented_answers_are_matched_to_their_requests() {
        let (link, mut server) = link();
        let key = Key::new("a".to_owned()).unwrap();
        let looks = [Command::Look { key: &key }, Command::Look { key: &key }];
        let serving = async {
            assert_eq!(received(&mut server).await, "mg a v c t O1\r\nmg a v c t O2\r\n");
            for piece in ["VA 2 c1 t5", " O1\r\nh", "i\r\nEN O", "2\r\n"] {
                server.write_all(piece.as_bytes()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let (replies, ()) = tokio::join!(link.ask(&looks, LIMIT), serving);
        let item = Reply::Item { value: b"hi".to_vec(), number: 1, left: Some(5), mark: Some(1) };
        assert_eq!(replies, Ok(vec![item, Reply::Missing { mark: Some(2) }]));
        assert!(link.is_usable());
    }

    #[tokio::test]
    async fn a_wrong_mark_or_a_garbled_answer_ends_the_connection() {
        for answer in ["EN O7\r\n", "HTTP/1.1 200 OK\r\n", "EN O1\r\nEN O2\r\n"] {
            let (link, mut server) = link();
            let key = Key::new("a".to_owned()).unwrap();
            server.write_all(answer.as_bytes()).await.unwrap();
            let outcome = link.ask(&[Command::Look { key: &key }], LIMIT).await;
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(outcome.is_err() || answer.len() > 10, "{answer:?}: {outcome:?}");
            assert!(!link.is_usable(), "{answer:?}");
        }
    }

    #[tokio::test]
    async fn missing_answer_says_whether_the_request_was_sent() {
        let (link, server) = link();
        let key = Key::new("a".to_owned()).unwrap();
        let remove = [Command::Remove { key: &key, number: 1 }];
        assert_eq!(link.ask(&remove, LIMIT).await, Err(NoAnswer::Late));
        assert!(!link.is_usable(), "a server that owes an answer gets no further request");
        drop(server);

        let (link, server) = self::link();
        drop(server);
        let outcome = link.ask(&remove, LIMIT).await;
        assert!(matches!(outcome, Err(NoAnswer::Broken | NoAnswer::Unsent)), "{outcome:?}");
        assert_eq!(link.ask(&remove, LIMIT).await, Err(NoAnswer::Unsent), "it is known to be broken");
    }

    #[tokio::test]
    async fn request_abandoned_in_the_queue_is_never_sent() {
        let (ours, mut server) = tokio::io::duplex(64);
        let link = Link::new(Box::new(ours), facts());
        let key = Key::new("k".repeat(250)).unwrap();
        // The first fills the way to the server, so that the second stays with the writer.
        let (first, second) = ([Command::Look { key: &key }], [Command::Remove { key: &key, number: 1 }]);
        let early = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            link.ask(&second, Duration::from_millis(20)).await
        };
        let (_, outcome) = tokio::join!(link.ask(&first, LIMIT), early);
        assert_eq!(outcome, Err(NoAnswer::Unsent));
        drop(link);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert!(!String::from_utf8_lossy(&all).contains("md "));
    }

    #[tokio::test]
    async fn queued_requests_of_a_connection_that_breaks_were_never_sent() {
        let (ours, server) = tokio::io::duplex(64);
        let link = Link::new(Box::new(ours), facts());
        let key = Key::new("k".repeat(250)).unwrap();
        // The first fills the way to the server, so that the others stay here.
        let commands = [Command::Remove { key: &key, number: 1 }];
        let breaking = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(server);
        };
        let limit = Duration::from_secs(30);
        let late = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            link.ask(&commands, limit).await
        };
        let (first, second, ()) = tokio::join!(link.ask(&commands, limit), late, breaking);
        assert_eq!((first, second), (Err(NoAnswer::Broken), Err(NoAnswer::Unsent)));
        assert!(!link.is_usable());
    }

    /// Polls once.
    fn poll(sent: &mut Sent) -> Poll<Answer> {
        Pin::new(sent).poll(&mut unwoken())
    }

    fn look(link: &Link, key: &str) -> Sent {
        let key = Key::new(key.to_owned()).unwrap();
        link.send(&[Command::Look { key: &key }]).unwrap()
    }

    fn item(value: &str, mark: u32) -> Answer {
        Ok(vec![Reply::Item { value: value.into(), number: 1, left: Some(5), mark: Some(mark) }])
    }

    /// Waits for an answer that comes without a poll of any other caller.
    async fn answer(sent: Sent) -> Answer {
        tokio::time::timeout(Duration::from_secs(30), sent).await.unwrap()
    }

    /// The task of the connection does not run between two awaits of the only thread.
    #[tokio::test]
    async fn only_request_is_written_and_read_by_its_caller() {
        let (link, mut server) = link();
        for mark in 1..=3 {
            let mut sent = look(&link, "a");
            let written = received(&mut server).now_or_never().unwrap();
            assert_eq!(written, format!("mg a v c t O{mark}\r\n"));
            assert!(poll(&mut sent).is_pending());
            server.write_all(b"VA 2 c1 t5 ").now_or_never().unwrap().unwrap();
            assert!(poll(&mut sent).is_pending(), "it is not whole");
            server.write_all(format!("O{mark}\r\nhi\r\n").as_bytes()).now_or_never().unwrap().unwrap();
            assert_eq!(poll(&mut sent), Poll::Ready(item("hi", mark)));
        }
        assert!(link.is_usable());
    }

    #[derive(Default)]
    struct Counted(AtomicU32);

    impl std::task::Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn caller_that_reads_its_answer_does_not_wake_itself() {
        let (link, mut server) = link();
        let mut sent = look(&link, "a");
        let counted = Arc::new(Counted::default());
        let waker = Waker::from(counted.clone());
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut sent).poll(&mut context).is_pending());
        server.write_all(b"EN O1\r\n").now_or_never().unwrap().unwrap();
        let arrived = counted.0.load(Ordering::SeqCst);
        assert!(Pin::new(&mut sent).poll(&mut context).is_ready());
        assert_eq!((arrived, counted.0.load(Ordering::SeqCst)), (1, 1));
    }

    #[tokio::test]
    async fn end_of_an_idle_connection_is_noticed_with_the_next_request() {
        for last in [&b""[..], b"EN O2\r\n", b"EN"] {
            let (link, mut server) = link();
            let mut sent = look(&link, "a");
            server.write_all(b"EN O1\r\n").now_or_never().unwrap().unwrap();
            assert_eq!(poll(&mut sent), Poll::Ready(Ok(vec![Reply::Missing { mark: Some(1) }])));
            assert!(link.is_usable());
            if last.is_empty() {
                drop(server);
            } else {
                server.write_all(last).now_or_never().unwrap().unwrap();
            }
            assert!(!link.is_usable(), "{last:?}");
            assert!(link.send(&[Command::Stats { part: "" }]).is_none());
        }
    }

    #[tokio::test]
    async fn a_caller_that_leaves_takes_no_answer_from_another() {
        // Nothing, or a part of the answer, was read when it leaves.
        for part in ["", "VA 2 c1", "VA 2 c1 t5 O1\r\nh"] {
            let whole = "VA 2 c1 t5 O1\r\nhi\r\n";
            let (link, mut server) = link();
            let mut left = look(&link, "a");
            server.write_all(part.as_bytes()).await.unwrap();
            assert!(poll(&mut left).is_pending());
            drop(left);
            let kept = look(&link, "b");
            assert_eq!(requests(&mut server, 2).await, "mg a v c t O1\r\nmg b v c t O2\r\n");
            server.write_all(&whole.as_bytes()[part.len()..]).await.unwrap();
            server.write_all(b"VA 3 c1 t5 O2\r\nhey\r\n").await.unwrap();
            assert_eq!(answer(kept).await, item("hey", 2), "{part:?}");
            assert!(link.is_usable());
        }
    }

    #[tokio::test]
    async fn request_needs_no_caller_that_is_polled() {
        for is_polled in [false, true] {
            let (link, mut server) = link();
            let mut idle = look(&link, "a");
            if is_polled {
                server.write_all(b"VA 2 c1 t5 O1").await.unwrap();
                assert!(poll(&mut idle).is_pending());
                server.write_all(b"\r\nhi\r\n").await.unwrap();
            } else {
                server.write_all(b"VA 2 c1 t5 O1\r\nhi\r\n").await.unwrap();
            }
            let busy = look(&link, "b");
            requests(&mut server, 2).await;
            server.write_all(b"VA 3 c1 t5 O2\r\nhey\r\n").await.unwrap();
            assert_eq!(answer(busy).await, item("hey", 2));
            assert_eq!(poll(&mut idle), Poll::Ready(item("hi", 1)));
            assert!(link.is_usable());
        }
    }

    #[tokio::test]
    async fn server_that_dies_within_an_answer_ends_the_connection() {
        for joined in [false, true] {
            let (link, mut server) = link();
            let mut first = look(&link, "a");
            server.write_all(b"VA 2 c1 t5 O1\r\nh").await.unwrap();
            assert!(poll(&mut first).is_pending());
            let second = joined.then(|| look(&link, "b"));
            tokio::task::yield_now().await;
            drop(server);
            assert_eq!(answer(first).await, Err(NoAnswer::Broken));
            if let Some(second) = second {
                let broken = answer(second).await;
                assert!(matches!(broken, Err(NoAnswer::Broken | NoAnswer::Unsent)), "{broken:?}");
            }
            assert!(!link.is_usable());
        }
    }

    #[tokio::test]
    async fn late_answer_to_a_reading_caller_ends_the_connection() {
        let (link, mut server) = link();
        let sent = look(&link, "a");
        server.write_all(b"VA 2 c1 t5 O1\r\nh").await.unwrap();
        assert_eq!(sent.within(Duration::from_millis(50)).await, Err(NoAnswer::Late));
        assert!(!link.is_usable());
        assert!(received(&mut server).await.starts_with("mg a"));
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0, "it is closed");
    }

    /// The server answers each request with its key, in pieces. Callers on two threads wait, leave at any point, or are
    /// not polled for a while.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_caller_gets_its_own_answer_whatever_the_others_do() {
        const ROUNDS: u32 = 2_000;
        // So narrow that requests and answers come in parts.
        let (ours, theirs) = tokio::io::duplex(40);
        let link = Arc::new(Link::new(Box::new(ours), facts()));
        let serving = tokio::spawn(serve_keys(theirs));
        let asking: Vec<_> = (0..4_u32)
            .map(|task| {
                let link = link.clone();
                tokio::spawn(async move {
                    let mut left_alone: VecDeque<(Sent, String)> = VecDeque::new();
                    for round in 0..ROUNDS {
                        let key = format!("{task}-{round}");
                        let mut sent = look(&link, &key);
                        match round.wrapping_mul(2_654_435_761).wrapping_add(task << 13) >> 13 & 7 {
                            0 => drop(sent),
                            1 => _ = poll(&mut sent),
                            2 => left_alone.push_back((sent, key)),
                            _ => expect(sent, &key).await,
                        }
                        if left_alone.len() > 3
                            && let Some((sent, key)) = left_alone.pop_front()
                        {
                            expect(sent, &key).await;
                        }
                    }
                    for (sent, key) in left_alone {
                        expect(sent, &key).await;
                    }
                })
            })
            .collect();
        for task in asking {
            task.await.unwrap();
        }
        assert!(link.is_usable());
        drop(link);
        assert!(serving.await.unwrap() <= 4 * ROUNDS);
    }

    async fn expect(sent: Sent, key: &str) {
        let replies = answer(sent).await.unwrap();
        let [Reply::Item { value, .. }] = &replies[..] else { panic!("{key} is answered with {replies:?}") };
        assert_eq!(value, key.as_bytes());
    }

    async fn serve_keys(mut stream: tokio::io::DuplexStream) -> u32 {
        let (mut input, mut count) = (Vec::new(), 0);
        while stream.read_buf(&mut input).await.unwrap() > 0 {
            while let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = input.drain(..end + 2).collect();
                let line = String::from_utf8(line).unwrap();
                let words: Vec<&str> = line.split_whitespace().collect();
                let [_, key, .., mark] = words[..] else { panic!("{line:?}") };
                let answer = format!("VA {} c1 t5 {mark}\r\n{key}\r\n", key.len());
                let cut = count as usize % answer.len();
                for piece in [&answer[..cut], &answer[cut..]] {
                    stream.write_all(piece.as_bytes()).await.unwrap();
                    if count % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                count += 1;
            }
        }
        count
    }

    #[tokio::test]
    async fn long_answer_arrives_whole_and_the_next_one_behind_it() {
        for length in [READ_SIZE - 20, READ_SIZE, 10 * READ_SIZE + 3] {
            let (ours, mut server) = tokio::io::duplex(3 * READ_SIZE);
            let link = Link::new(Box::new(ours), facts());
            let key = Key::new("a".to_owned()).unwrap();
            let (first, second) = ([Command::Look { key: &key }], [Command::Look { key: &key }]);
            let serving = async {
                requests(&mut server, 2).await;
                let value = "x".repeat(length);
                let text = format!("VA {length} c1 t5 O1\r\n{value}\r\nEN O2\r\n");
                server.write_all(text.as_bytes()).await.unwrap();
            };
            let limit = Duration::from_secs(30);
            let (long, next, ()) = tokio::join!(link.ask(&first, limit), link.ask(&second, limit), serving);
            let item = Reply::Item { value: vec![b'x'; length], number: 1, left: Some(5), mark: Some(1) };
            assert_eq!((long, next), (Ok(vec![item]), Ok(vec![Reply::Missing { mark: Some(2) }])));
        }
    }
}
