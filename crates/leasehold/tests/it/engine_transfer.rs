//! Transfers whose requests or answers are lost or late: what the error says, and what is left in the store.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::backend::{Backend, Claim, Failure, LossCause, ManualClock, Patience, Proof, Step};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, Event, EventSubscriber, Guard, Owner, Result, TokioClock, Tuning};
use leasehold_conformance::{Around, Wrapped};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(1);

/// A transfer in virtual time, whose token another client accepts in the background.
struct Transfer {
    other: Client,
    wire: Arc<Fault>,
    accepts: JoinHandle<Result<Guard>>,
}

/// Returns when the first request to accept the token is under way, in this mode.
async fn accept_in(mode: Mode) -> Transfer {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let open = || {
        let wire = Arc::new(Fault::over(store.clone()));
        let builder = Client::builder().clock(clock.clone()).tuning(Tuning::default().outage(TTL * 5));
        (builder.over(wire.clone()).unwrap(), wire)
    };
    let ((from, _), (to, wire), (other, _)) = (open(), open(), open());
    let token = from.mutex("job").ttl(TTL).lock().await.unwrap().transfer().await.unwrap();
    wire.set(Verb::Contend, mode);
    let accepts = tokio::spawn(async move { to.mutex("job").ttl(TTL).accept_transfer(&token).await });
    while wire.calls(Verb::Contend) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Transfer { other, wire, accepts }
}

#[tokio::test(start_paused = true)]
async fn refusal_after_a_late_answer_is_an_unknown_outcome() {
    let Transfer { other, wire, accepts } = accept_in(Mode::LateReply(TTL * 2)).await;
    wire.set(Verb::Contend, Mode::Refuse);
    let error = accepts.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(wire.calls(Verb::Contend) > 1, "it asks again after the late answer");
    other.mutex("job").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unanswered_request_is_withdrawn_when_another_client_holds() {
    let Transfer { other, wire, accepts } = accept_in(Mode::LoseRequest).await;
    let held = other.mutex("job").lock().await.unwrap();
    assert_eq!(wire.calls(Verb::Release), 0);
    wire.set(Verb::Contend, Mode::Pass);
    let error = accepts.await.unwrap().unwrap_err();
    assert!(error.is_lost(), "{error}");
    tokio::time::sleep(TTL).await;
    assert_eq!(wire.calls(Verb::Release), 1);
    held.release().await.unwrap();
}

/// The store then grants the claim anew, which was not asked for.
#[tokio::test(start_paused = true)]
async fn claim_that_ended_after_its_transfer_is_not_granted_anew() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let open = || Client::builder().clock(clock.clone()).over(store.clone()).unwrap();
    let (from, to, other) = (open(), open(), open());
    let token = from.mutex("job").lock().await.unwrap().transfer().await.unwrap();
    let ended = other.inspect("job").await.unwrap().holders.remove(0);
    other.break_claim("job", &ended).await.unwrap();
    let error = to.mutex("job").accept_transfer(&token).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    // Nothing is left of that grant.
    tokio::time::sleep(Duration::from_millis(100)).await;
    other.mutex("job").try_lock().await.unwrap().expect("it is free").release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn transfer_that_is_granted_to_a_client_that_closed_is_not_accepted() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let open = || Client::builder().clock(clock.clone()).over(store.clone()).unwrap();
    let (from, to) = (open(), open());
    let token = from.mutex("job").lock().await.unwrap().transfer().await.unwrap();
    let mutex = to.mutex("job");
    let mut accepts = pin!(mutex.accept_transfer(&token));
    assert!((&mut accepts).now_or_never().is_none());
    // It is granted without a further poll.
    tokio::time::sleep(TTL).await;
    assert!(to.close(TTL).await);
    assert_eq!(accepts.await.unwrap_err().kind(), ErrorKind::Closed);
    from.mutex("job").try_lock().await.unwrap().expect("it is released").release().await.unwrap();
}

/// The same, as far as the store was asked: nothing was lost, so nothing is left to withdraw.
#[tokio::test(start_paused = true)]
async fn token_that_was_answered_leaves_nothing_to_withdraw() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let wire = Arc::new(Fault::over(store.clone()));
    let open = |backend| Client::builder().clock(clock.clone()).over(backend).unwrap();
    let (from, to, other): (_, _, Client) = (open(store.clone()), open(wire.clone()), open(store));
    let token = from.mutex("job").ttl(TTL).lock().await.unwrap().transfer().await.unwrap();
    let ended = other.inspect("job").await.unwrap().holders.remove(0);
    other.break_claim("job", &ended).await.unwrap();
    let held = other.mutex("job").lock().await.unwrap();
    let error = to.mutex("job").ttl(TTL).accept_transfer(&token).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    tokio::time::sleep(TTL).await;
    assert_eq!(wire.calls(Verb::Release), 0);
    held.release().await.unwrap();
}

/// The store keeps what it has granted for the lock delay.
#[tokio::test(start_paused = true)]
async fn transfer_whose_answers_all_come_too_late_releases_its_claim() {
    let lock = |locks: &Client| locks.mutex("job").ttl(TTL).lock_delay(TTL * 60);
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let wire = Arc::new(Fault::over(store.clone()));
    let open = |backend| Client::builder().clock(clock.clone()).over(backend).unwrap();
    let (from, to): (Client, _) = (open(store), open(wire.clone()));
    let token = lock(&from).lock().await.unwrap().transfer().await.unwrap();
    wire.set(Verb::Contend, Mode::LateReply(TTL * 2));
    let error = lock(&to).accept_transfer(&token).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(wire.calls(Verb::Contend), 3);
    let free = from.mutex("job").try_lock_for(TTL).await.unwrap();
    free.expect("nobody has it").release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn transfer_in_an_outage_is_asked_with_pauses_and_then_released() {
    let Transfer { other, wire, accepts } = accept_in(Mode::LoseRequest).await;
    let error = accepts.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(wire.calls(Verb::Contend) <= 20, "{}", wire.calls(Verb::Contend));
    tokio::time::sleep(TTL).await;
    assert_eq!(wire.calls(Verb::Release), 1);
    other.mutex("job").try_lock().await.unwrap().expect("it is free").release().await.unwrap();
}

/// The right to the lock is left to another client.
#[tokio::test(start_paused = true)]
async fn closed_client_uses_no_token_up() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let open = || Client::builder().clock(clock.clone()).over(store.clone()).unwrap();
    let (from, to, other) = (open(), open(), open());
    let token = from.mutex("job").lock().await.unwrap().transfer().await.unwrap();
    assert!(to.close(TTL).await);
    assert_eq!(to.mutex("job").accept_transfer(&token).await.unwrap_err().kind(), ErrorKind::Closed);
    tokio::time::sleep(TTL).await;
    other.mutex("job").accept_transfer(&token).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn store_that_cannot_transfer_says_so_before_anything_is_sent() {
    let store = Wrapped(Proving { inner: MemoryBackend::new(), transfers: false });
    let wire = Arc::new(Fault::over(Arc::new(store)));
    let locks = Client::builder().over(wire.clone()).unwrap();
    assert_eq!(locks.mutex("job").transferable().unwrap_err().kind(), ErrorKind::Unsupported);
    let guard = locks.mutex("job").lock().await.unwrap();
    let error = guard.transfer().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(wire.calls(Verb::Swap), 0);
}

/// What `transferable` lets pass, `transfer` does not refuse: a refusal then would release the lock.
#[tokio::test]
async fn name_too_long_for_a_transfer_is_refused_before_the_lock_is_taken() {
    let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    let locks = Client::builder().over(wire.clone()).unwrap();
    let error = locks.mutex("n".repeat(505)).transferable().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(wire.calls(Verb::Contend), 0);
    let lock = locks.mutex("n".repeat(504)).transferable().unwrap();
    let token = lock.lock().await.unwrap().transfer().await.unwrap();
    lock.accept_transfer(&token).await.unwrap().release().await.unwrap();
}

/// The clock has passed its end, and nothing has looked at it meanwhile.
#[tokio::test]
async fn lock_that_ends_during_its_transfer_is_released() {
    let clock = Arc::new(ManualClock::new());
    let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::with_clock(clock.clone()))));
    let locks = Client::builder().clock(clock.clone()).over(wire.clone()).unwrap();
    let guard = locks.mutex("job").ttl(TTL).lock().await.unwrap();
    wire.set(Verb::Swap, Mode::Hang);
    let mut transfers = pin!(guard.transfer());
    while wire.calls(Verb::Swap) == 0 {
        assert!((&mut transfers).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    wire.set(Verb::Swap, Mode::Pass);
    clock.advance(TTL * 2);
    let error = transfers.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LossCause::Expired), "{error}");
    // Its place in the queue of this client is free, too.
    let free = locks.mutex("job").try_lock().await.unwrap();
    free.expect("nobody has it").release().await.unwrap();
}

/// The numbers of leases that began and ended, and of holds that were released.
#[derive(Debug, Default)]
struct Counter([AtomicU32; 3]);

impl EventSubscriber for Counter {
    fn on_event(&self, event: &Event<'_>) {
        let Counter([began, ended, released]) = self;
        let count = match event {
            Event::LeaseStarted { .. } => began,
            Event::LeaseEnded { .. } => ended,
            Event::Released { .. } => released,
            _ => return,
        };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn transfer_is_the_end_of_a_hold_and_of_a_lease() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let counter = Arc::new(Counter::default());
    let from = Client::builder().clock(clock).subscriber(counter.clone()).over(store).unwrap();
    let guard = from.mutex("job").ttl(TTL).lock().await.unwrap();
    drop(guard.transfer().await.unwrap());
    assert_eq!(counter.0.each_ref().map(|count| count.load(Ordering::SeqCst)), [1, 1, 1]);
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(counter.0.each_ref().map(|count| count.load(Ordering::SeqCst)), [1, 1, 1]);
}

/// The memory store, whose grants have a proof.
#[derive(Debug)]
struct Proving {
    inner: MemoryBackend,
    transfers: bool,
}

#[async_trait::async_trait]
impl Around for Proving {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    fn supports_transfer(&self) -> bool {
        self.transfers
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        match self.inner.contend(claim, patience).await? {
            Step::Granted(grant) => Ok(Step::Granted(grant.proof(Proof::of("a condition")))),
            busy => Ok(busy),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn transfer_is_refused_if_another_guard_of_the_owner_takes_the_proof_meanwhile() {
    let clock = Arc::new(TokioClock::new());
    let store = Wrapped(Proving { inner: MemoryBackend::with_clock(clock.clone()), transfers: true });
    let wire = Arc::new(Fault::over(Arc::new(store)));
    let locks = Client::builder().clock(clock).over(wire.clone()).unwrap();
    let owner = Owner::new();
    let mutex = locks.mutex("job").owner(&owner);
    for takes in [false, true] {
        let guard = mutex.lock().await.unwrap();
        wire.set(Verb::Swap, Mode::Hang);
        let before = wire.calls(Verb::Swap);
        let transfers = tokio::spawn(guard.transfer());
        while wire.calls(Verb::Swap) == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let again = mutex.lock().await.unwrap();
        if takes {
            assert!(!again.proof().is_none());
        }
        again.release().await.unwrap();
        wire.set(Verb::Swap, Mode::Pass);
        let transferred = transfers.await.unwrap();
        if takes {
            let error = transferred.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("its proof was taken"), "{error}");
        } else {
            let accepted = locks.mutex("job").accept_transfer(&transferred.unwrap()).await;
            accepted.unwrap().release().await.unwrap();
        }
        // Either way it is released, and not left to its lease.
        let free = locks.mutex("job").try_lock_for(Duration::from_secs(1)).await;
        free.unwrap().unwrap().release().await.unwrap();
    }
}
