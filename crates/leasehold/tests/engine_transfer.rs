//! Transfers whose requests or answers are lost or late: what the error says, and what is left in the store.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, Guard, Result, TokioClock, Tuning};
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
