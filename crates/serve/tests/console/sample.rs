//! A store with something to see: holders of several programs, queues, a deadlock, and a holder that is gone.

use std::time::Duration;

use leasehold::{Client, Guard, Mutex, Note, Owner};

/// The programs of the sample, which end when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    clients: Vec<Client>,
    guards: Vec<Guard>,
    /// The runtime of a program that hangs: nothing drives it, so nothing is renewed.
    hung: Vec<(tokio::runtime::Runtime, Client, Guard)>,
    tasks: tokio::task::JoinSet<()>,
}

impl Sample {
    /// Opens a client as another program would.
    pub(crate) async fn client(&mut self, url: &str, note: &str) -> Client {
        let note = Note::new(note).expect("a short note");
        let client = Client::builder().note(note).open(url).await.expect("the store opens");
        self.clients.push(client.clone());
        client
    }

    /// Holds a mutex.
    pub(crate) async fn hold(&mut self, client: &Client, name: &str) {
        let guard = client.mutex(name).lock().await.expect("the lock is granted");
        self.guards.push(guard);
    }

    /// Waits for a mutex for as long as the sample lives.
    pub(crate) async fn wait(&mut self, client: &Client, name: &str) {
        let lock = client.mutex(name);
        self.tasks.spawn(async move {
            let _guard = lock.lock().await;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
    }

    /// Holds a lock in a program that then hangs.
    pub(crate) async fn hang(&mut self, url: &str, note: &str, name: &str, ttl: Duration) {
        let (url, note, name) = (url.to_owned(), note.to_owned(), name.to_owned());
        let hung = tokio::task::spawn_blocking(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let (client, guard) = runtime.block_on(async {
                let note = Note::new(&note).expect("a short note");
                let client = Client::builder().note(note).open(&url).await.expect("the store opens");
                let guard = client.mutex(&name).ttl(ttl).lock().await.expect("the lock is granted");
                (client, guard)
            });
            (runtime, client, guard)
        });
        self.hung.push(hung.await.expect("it has not panicked"));
    }

    /// Lets two owners wait for each other's locks.
    pub(crate) async fn deadlock(&mut self, url: &str, names: [&str; 2], notes: [&str; 2]) {
        let mut begun = Vec::new();
        for (name, note) in names.into_iter().zip(notes) {
            let client = self.client(url, note).await;
            let owner = Owner::new();
            let lock = |name: &str| -> Mutex {
                client.mutex(name).owner(&owner).announce_wait(Duration::from_millis(500))
            };
            self.guards.push(lock(name).lock().await.expect("the first lock is granted"));
            let other = names.into_iter().find(|other| *other != name).expect("there are two");
            begun.push(lock(other));
        }
        for lock in begun {
            self.tasks.spawn(async move {
                let _guard = lock.lock().await;
                std::future::pending::<()>().await;
            });
        }
    }

    /// Lets programs take turns at a lock for ever.
    pub(crate) async fn turns(&mut self, url: &str, name: &str, notes: &[&str], hold: Duration) {
        for note in notes {
            let lock = self.client(url, note).await.mutex(name);
            self.tasks.spawn(async move {
                loop {
                    let Ok(guard) = lock.lock().await else { return };
                    tokio::time::sleep(hold).await;
                    let _ = guard.release().await;
                }
            });
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        // A runtime may not be dropped inside another one.
        for (runtime, client, guard) in self.hung.drain(..) {
            drop((client, guard));
            runtime.shutdown_background();
        }
    }
}

/// Fills a store with the sample of the book. The holder that hangs has a lease of `ttl`.
pub(crate) async fn fill(url: &str, ttl: Duration) -> Sample {
    let mut sample = Sample::default();
    let billing = sample.client(url, "host=billing-2 pid=4711 cmd=invoice-run").await;
    sample.hold(&billing, "billing/invoices").await;
    for pid in 0..12 {
        let waiter = sample
            .client(url, &format!("host=web-{} pid={} cmd=checkout", pid % 4 + 1, 2300 + pid * 7))
            .await;
        sample.wait(&waiter, "billing/invoices").await;
    }
    sample.hang(url, "host=search-1 pid=977 cmd=reindex --full", "search/reindex", ttl).await;
    let waiting = sample.client(url, "host=search-2 pid=1024 cmd=reindex").await;
    sample.wait(&waiting, "search/reindex").await;
    let notes =
        ["host=bank-1 pid=311 cmd=transfer 1007 to 2042", "host=bank-3 pid=298 cmd=transfer 2042 to 1007"];
    sample.deadlock(url, ["accounts/1007", "accounts/2042"], notes).await;
    let readers = ["host=report-1 pid=88 cmd=report", "host=report-2 pid=91 cmd=report"];
    for note in readers {
        let client = sample.client(url, note).await;
        let guard = client.rwlock("catalogue/prices").read().await.expect("a reader is admitted");
        sample.guards.push(guard);
    }
    let uploads = sample.client(url, "host=media-1 pid=640 cmd=upload").await;
    for _ in 0..3 {
        let guard = uploads.semaphore("media/encoders", 4).acquire().await.expect("a permit");
        sample.guards.push(guard);
    }
    let deployers = [
        "host=ci-7 pid=5120 cmd=deploy shop 2026.11.3",
        "host=ci-2 pid=771 cmd=deploy search 81",
        "host=ci-4 pid=90 cmd=rollback shop",
    ];
    sample.turns(url, "deploy/production", &deployers, Duration::from_secs(7)).await;
    let workers = sample.client(url, "host=worker-3 pid=1200 cmd=orders").await;
    for order in 0..40 {
        sample.hold(&workers, &format!("orders/{}", 80_417 + order * 13)).await;
    }
    sample.hold(&workers, "cron/nightly-report").await;
    sample
}
