//! The model for other processes: the test program serves its store on a socket, and a taker connects to it.
//!
//! A request and its answer are one line each. Reading blocks, which is all that one client at a time needs.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Backend, Claim, ClaimId, ClaimInfo, Failure, Fence, FenceGrade, Grant, Hint, Note, Patience, Profile,
    Release, Renew, Renewal, Resource, ResourceSummary, Share, Snapshot, SnapshotVersion, Step, Verdict,
};

use super::{Defect, Store};

/// A store that other processes reach while this value lives, and until the end of the test program.
pub struct Server {
    directory: tempfile::TempDir,
    profile: &'static str,
}

impl Server {
    pub fn start(store: Arc<Store>) -> std::io::Result<Server> {
        let directory = tempfile::tempdir()?;
        let listener = UnixListener::bind(directory.path().join("socket"))?;
        let profile = match (store.is_session(), store.profile.fencing) {
            (true, _) => "session",
            (false, FenceGrade::None) => "weak",
            (false, _) => "lease",
        };
        std::thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                let (store, Ok(stream)) = (store.clone(), stream) else { return };
                std::thread::spawn(move || serve(&store, stream, n as u64 + 1));
            }
        });
        Ok(Server { directory, profile })
    }

    pub fn address(&self) -> String {
        format!("{}:{}", self.profile, self.directory.path().join("socket").display())
    }
}

/// Answers one client until it is gone, and ends its session then.
fn serve(store: &Arc<Store>, stream: UnixStream, process: u64) {
    let mut claims: HashMap<ClaimId, Claim> = HashMap::new();
    let Ok(mut answers) = stream.try_clone() else { return };
    for request in BufReader::new(stream).lines() {
        let Ok(request) = request else { break };
        let answer = answer(store, &request, process, &mut claims);
        if writeln!(answers, "{answer}").is_err() {
            break;
        }
    }
    if store.is_session() {
        claims.values().for_each(|claim| store.end_session_claim(claim));
    }
}

fn answer(store: &Arc<Store>, request: &str, process: u64, claims: &mut HashMap<ClaimId, Claim>) -> String {
    let fields: Vec<&str> = request.split(' ').collect();
    let claim = read(&fields);
    match fields[0] {
        "contend" => {
            claims.insert(claim.id, claim.clone());
            match store.ask(&claim, fields[5] == "patient", process) {
                Verdict::Granted(fence) => format!("granted {fence}"),
                Verdict::Busy { ahead, .. } => format!("busy {ahead}"),
                Verdict::Full => "full".to_owned(),
            }
        }
        "renew" => store.renew(&claim).to_string(),
        "release" => {
            claims.remove(&claim.id);
            if store.is(Defect::ReleaseIsDelayed) {
                let store = store.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_secs(3));
                    store.release(&claim);
                });
                return true.to_string();
            }
            store.release(&claim).to_string()
        }
        _ => {
            let seen = store.look(&claim.resource);
            let held = seen.entries.iter().filter(|entry| entry.granted.is_some()).count();
            format!("{held} {}", seen.entries.len() - held)
        }
    }
}

/// A connection of another process.
#[derive(Debug)]
pub struct Remote {
    profile: Profile,
    stream: Mutex<BufReader<UnixStream>>,
}

impl Remote {
    pub fn open(address: &str) -> Result<Arc<dyn Backend>, Failure> {
        let (kind, path) = address.split_once(':').ok_or_else(|| Failure::unavailable(address))?;
        let profile = match kind {
            "session" => super::session(),
            "weak" => super::weak(),
            _ => super::polling(),
        };
        let stream = UnixStream::connect(path).map_err(|error| Failure::unavailable(path).because(error))?;
        Ok(Arc::new(Remote { profile, stream: Mutex::new(BufReader::new(stream)) }))
    }

    fn call(&self, verb: &str, claim: &Claim, more: &str) -> Result<String, Failure> {
        let request = format!("{verb} {} {more}\n", write(claim));
        let mut stream = self.stream.lock().unwrap();
        let mut answer = String::new();
        let called = stream.get_mut().write_all(request.as_bytes());
        match called.and_then(|()| stream.read_line(&mut answer)) {
            Ok(1..) => Ok(answer.trim_end().to_owned()),
            Ok(0) => Err(Failure::unanswered("the server hung up")),
            Err(error) => Err(Failure::unanswered("the server").because(error)),
        }
    }
}

#[async_trait]
impl Backend for Remote {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let asked_at = patience.now();
        let patient = !patience.is_ended();
        let answer = self.call("contend", claim, if patient { "patient" } else { "at-once" })?;
        let Some(fence) = answer.strip_prefix("granted ") else {
            let ask_again_in = patient.then_some(Duration::from_millis(5));
            return Ok(Step::Busy(Hint { ask_again_in, ahead: None }));
        };
        let fence: Fence = fence.parse().map_err(|_| Failure::unavailable("a bad fence"))?;
        let fence = Some(fence).filter(|_| self.profile.fencing > FenceGrade::None);
        Ok(Step::Granted(Grant::new(asked_at).fence(fence)))
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let renewal = |renew: &Renew<'_>| match self.call("renew", renew.claim, "") {
            Ok(answer) if answer == "true" => Renewal::Renewed,
            Ok(_) => Renewal::Lost,
            Err(failure) => Renewal::Unknown(failure),
        };
        batch.iter().map(renewal).collect()
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        let release = |claim: &&Claim| match self.call("release", claim, "") {
            Ok(answer) if answer == "true" => Release::Freed,
            Ok(_) => Release::Gone,
            Err(failure) => Release::Unknown(failure),
        };
        batch.iter().map(release).collect()
    }

    /// Only the numbers are right: a taker reports nothing else.
    async fn inspect(
        &self,
        resource: &Resource,
        _: Option<&SnapshotVersion>,
        _: &Patience,
    ) -> Result<Snapshot, Failure> {
        let claim = claim_of(resource.clone());
        let answer = self.call("inspect", &claim, "")?;
        let (holders, waiting) = answer.split_once(' ').unwrap_or_default();
        let many = |count: &str| {
            let (id, share, note) = (claim.id, claim.share, Note::default());
            let one = ClaimInfo::new(id, share).note(note);
            vec![one; count.parse().unwrap_or_default()]
        };
        let (holders, waiting) = (many(holders), many(waiting));
        Ok(Snapshot::new(resource.clone(), SnapshotVersion::new(answer)).holders(holders).waiting(waiting))
    }

    async fn list(&self, _: &str, _: Option<&Resource>, _: usize) -> Result<Vec<ResourceSummary>, Failure> {
        Err(Failure::unavailable("a taker lists nothing"))
    }
}

fn claim_of(resource: Resource) -> Claim {
    let (id, ttl) = (ClaimId::from_bytes([0; 16]), Duration::from_secs(1));
    Claim::new(id, resource, Share::MUTEX, ttl)
}

fn write(claim: &Claim) -> String {
    let name = claim.resource.escaped(|byte| byte.is_ascii_alphanumeric(), 2000);
    let (weight, capacity) = (claim.share.weight(), claim.share.capacity());
    format!("{} {name} {weight}/{capacity} {}", claim.id.to_hex(), claim.ttl.as_millis())
}

fn read(fields: &[&str]) -> Claim {
    let (weight, capacity) = fields[3].split_once('/').unwrap();
    Claim::new(
        ClaimId::from_hex(fields[1]).unwrap(),
        Resource::from_escaped(fields[2]).unwrap(),
        Share::permits(weight.parse().unwrap(), capacity.parse().unwrap()).unwrap(),
        Duration::from_millis(fields[4].parse().unwrap()),
    )
}
