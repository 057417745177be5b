//! The servers: which one has a resource, the key of a resource, and requests with their answers.
//!
//! Nothing is retried here: a connection known to be dead is replaced before a request is sent, and
//! whether to repeat what may have happened is decided above. A server that is away keeps its resources,
//! which are unavailable until it is back; those of the others are not concerned.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_backend::connection::NoAnswer;
use leasehold_core::{Failure, Resource};
use tokio::sync::OnceCell;

use crate::config::{Dialect, MemcachedConfig};
use crate::net::dialer::Dialer;
use crate::net::error;
use crate::net::link::{Link, MAX_REQUEST, Sent};
use crate::net::ring::Ring;
use crate::protocol::command::{Command, Key, MAX_KEY};
use crate::protocol::reply::Reply;

/// The outcome of one command, and its connection.
pub(crate) type Answer = Result<(Arc<Link>, Reply), Failure>;

/// All servers of one URL.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) nodes: Vec<Node>,
    pub(crate) ring: Ring,
    prefix: String,
    dialect: Dialect,
}

impl Servers {
    /// Creates the set of servers, none of which is connected yet.
    pub(crate) fn new(config: Arc<MemcachedConfig>) -> Servers {
        let node = |host: &leasehold_backend::url::Host| Node {
            dialer: Dialer::new(config.clone(), host.clone()),
            limit: config.timeout,
            slot: Arc::default(),
        };
        let nodes: Vec<Node> = config.hosts.iter().map(node).collect();
        let ring = Ring::new(nodes.iter().map(|node| node.dialer.address()).collect());
        Servers { nodes, ring, prefix: config.prefix.clone(), dialect: config.dialect }
    }

    /// Connects to all of them. One that answers is enough: what is on the others is unavailable until they
    /// do.
    pub(crate) async fn connect(&self) -> Result<(), Failure> {
        let outcomes = join_all(self.nodes.iter().map(Node::link)).await;
        let mut failures = outcomes.into_iter().filter_map(Result::err).collect::<Vec<_>>();
        if failures.len() < self.nodes.len() {
            for failure in &failures {
                tracing::warn!(%failure, "the resources of one memcached server are unavailable");
            }
            // A failure that will not pass by waiting is reported at once, from any server.
            let lasting = failures.into_iter().find(|failure| !failure.is_transient());
            return lasting.map_or(Ok(()), Err);
        }
        Err(failures.swap_remove(0))
    }

    /// Returns the server that has a resource.
    pub(crate) fn node(&self, resource: &Resource) -> &Node {
        &self.nodes[self.ring.place(resource)]
    }

    /// Numbers the server that has a resource, whose answers have nothing to do with those of the others.
    pub(crate) fn part(&self, resource: &Resource) -> u64 {
        self.ring.place(resource) as u64
    }

    /// Returns the key of a resource. Two names never share one, but for a collision of their hashes.
    ///
    /// # Errors
    /// In the plain dialect, for a name that cannot be written as it is: other libraries use no other form.
    pub(crate) fn key(&self, resource: &Resource) -> Result<Key, Failure> {
        if self.dialect == Dialect::Plain {
            return self.key_of_escaped(resource.as_str()).ok_or_else(|| {
                leasehold_backend::url::invalid(format!(
                    "{resource:?} cannot be written as other libraries write it: with the prefix {:?} a key has at \
                     most {MAX_KEY} bytes, all of them visible ASCII characters; choose another name, or take \
                     dialect=native, which excludes leasehold's own clients only",
                    self.prefix
                ))
            });
        }
        let escaped = resource.escaped(|byte| byte.is_ascii_graphic(), MAX_KEY - self.prefix.len());
        self.key_of_escaped(&escaped)
            .ok_or_else(|| leasehold_backend::url::invalid(format!("{resource:?} has no key in memcached")))
    }

    /// Returns the key of a register. No resource has it: behind a `%` an escaped name has two digits.
    pub(crate) fn register(&self, resource: &Resource) -> Result<Key, Failure> {
        let max_len = MAX_KEY - self.prefix.len() - REGISTER.len();
        let escaped = resource.escaped(|byte| byte.is_ascii_graphic(), max_len);
        self.key_of_escaped(&format!("{REGISTER}{escaped}"))
            .ok_or_else(|| leasehold_backend::url::invalid(format!("{resource:?} has no key in memcached")))
    }

    /// Returns the key of a resource by its escaped name.
    pub(crate) fn key_of_escaped(&self, escaped: &str) -> Option<Key> {
        let mut key = String::with_capacity(self.prefix.len() + escaped.len());
        key.push_str(&self.prefix);
        key.push_str(escaped);
        Key::new(key)
    }

    /// Returns what a key of ours says of its resource; `None` where it is not ours.
    pub(crate) fn named_by<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.prefix)
    }

    /// Returns the resource that such a text names; `None` where it is no name, or only the hash of one.
    pub(crate) fn resource(&self, text: &str) -> Option<Resource> {
        match self.dialect {
            Dialect::Native => Resource::from_escaped(text),
            Dialect::Plain => Resource::new(text).ok().filter(|resource| self.key(resource).is_ok()),
        }
    }

    /// Returns `true` if such a text is the hash of a name, which is then in the value.
    pub(crate) fn is_hashed(&self, text: &str) -> bool {
        self.dialect == Dialect::Native && Resource::is_hashed(text)
    }

    /// Returns the items of these resources, in order, with the connection over which each answer arrived.
    pub(crate) async fn look(&self, at: &[&Resource]) -> Vec<Answer> {
        let keys: Vec<Result<Key, Failure>> = at.iter().map(|resource| self.key(resource)).collect();
        let command = |index: usize, _: &Link| Some(Command::Look { key: keys[index].as_ref().ok()? });
        let answers = self.scatter(at, command, Reply::Missing { mark: None }).await;
        // A name without a key is a failure of its own claim only.
        answers
            .into_iter()
            .zip(&keys)
            .map(|(answer, key)| key.as_ref().map_err(Clone::clone).and(answer))
            .collect()
    }

    /// Asks one command about each of these resources, all servers at once. Where there is none to be asked
    /// over the connection at hand, the answer is `otherwise`.
    pub(crate) async fn scatter<'a>(
        &self,
        at: &[&Resource],
        command: impl Fn(usize, &Link) -> Option<Command<'a>>,
        otherwise: Reply,
    ) -> Vec<Answer> {
        let mut groups: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (index, resource) in at.iter().enumerate() {
            groups[self.ring.place(resource)].push(index);
        }
        let command = &command;
        let otherwise = &otherwise;
        let asking = self.nodes.iter().zip(&groups).filter(|(_, group)| !group.is_empty());
        let answered = join_all(asking.map(|(node, group)| async move {
            let link = match node.link().await {
                Ok(link) => link,
                Err(failure) => {
                    return group.iter().map(|index| (*index, Err(failure.clone()))).collect::<Vec<_>>();
                }
            };
            let asked: Vec<Option<Command<'_>>> = group.iter().map(|index| command(*index, &link)).collect();
            let commands: Vec<Command<'_>> = asked.iter().flatten().cloned().collect();
            let mut replies = node.ask_all(&link, &commands).await.into_iter();
            let mut answers = Vec::with_capacity(group.len());
            for (index, asked) in group.iter().zip(&asked) {
                let reply =
                    asked.as_ref().and_then(|_| replies.next()).unwrap_or_else(|| Ok(otherwise.clone()));
                answers.push((*index, reply.map(|reply| (link.clone(), reply))));
            }
            answers
        }))
        .await;
        let mut all: Vec<(usize, _)> = answered.into_iter().flatten().collect();
        all.sort_by_key(|(index, _)| *index);
        all.into_iter().map(|(_, answer)| answer).collect()
    }
}

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) dialer: Dialer,
    limit: Duration,
    slot: Arc<Mutex<Arc<Slot>>>,
}

/// One connection, or the attempt to make it. A task that arrives meanwhile waits for the same.
type Slot = OnceCell<Result<Arc<Link>, Failure>>;

impl Node {
    /// Returns a connection that works, as far as is known.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, Failure> {
        for _ in 0..MAX_DIALS {
            let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let dialed = slot.get_or_init(|| async {
                let link = self.dialer.link().await.map(Arc::new);
                if link.is_err() {
                    // The failure is also the answer for those that come right after it.
                    let spent = Arc::downgrade(&slot);
                    let slots = Arc::downgrade(&self.slot);
                    leasehold_machine::spawn(async move {
                        tokio::time::sleep(REDIAL_PAUSE).await;
                        if let (Some(slots), Some(spent)) = (Weak::upgrade(&slots), Weak::upgrade(&spent)) {
                            replace(&slots, &spent);
                        }
                    });
                }
                link
            });
            match dialed.await {
                Ok(link) if !link.is_usable() => replace(&self.slot, &slot),
                outcome => return outcome.clone(),
            }
        }
        let text = format!("{} ends every connection as soon as it is made", self.dialer.address());
        Err(Failure::unavailable(text))
    }

    /// Returns the connection that is there and works, as far as is known.
    pub(crate) fn link_now(&self) -> Option<Arc<Link>> {
        // The look may end the connection, which wakes others: not under the lock.
        let link = self.slot.lock().unwrap_or_else(PoisonError::into_inner).get()?.as_ref().ok()?.clone();
        link.is_usable().then_some(link)
    }

    /// Asks these commands in one go: all are answered, or none is.
    pub(crate) async fn ask(&self, link: &Link, commands: &[Command<'_>]) -> Result<Vec<Reply>, Failure> {
        let answer = link.ask(commands, self.limit).await;
        answer.map_err(|no_answer| self.unanswered(no_answer, commands.iter().any(Command::changes)))
    }

    /// Waits for the answers to commands that were sent in one go, as [`Node::ask`].
    pub(crate) async fn answers_to(&self, sent: Sent, changes: bool) -> Result<Vec<Reply>, Failure> {
        sent.within(self.limit).await.map_err(|no_answer| self.unanswered(no_answer, changes))
    }

    fn unanswered(&self, no_answer: NoAnswer, changes: bool) -> Failure {
        let limit = humantime::format_duration(self.limit).to_string();
        error::of_no_answer(no_answer, changes, &self.dialer.address(), &limit)
    }

    /// Asks many commands, in as many goes as their sizes need.
    pub(crate) async fn ask_all(&self, link: &Link, commands: &[Command<'_>]) -> Vec<Result<Reply, Failure>> {
        let answered = join_all(portions(commands).into_iter().map(|portion| async move {
            match self.ask(link, portion).await {
                Ok(replies) => replies.into_iter().map(Ok).collect(),
                Err(failure) => vec![Err(failure); portion.len()],
            }
        }));
        answered.await.concat()
    }

    /// Describes an answer that should not have come.
    pub(crate) fn unexpected(&self, reply: &Reply) -> Failure {
        match reply {
            Reply::Refused(text) => error::of_text(text, &self.dialer.address()),
            _ => error::of_nonsense(&self.dialer.address()),
        }
    }
}

fn replace(slots: &Mutex<Arc<Slot>>, spent: &Arc<Slot>) {
    let mut slot = slots.lock().unwrap_or_else(PoisonError::into_inner);
    if Arc::ptr_eq(&slot, spent) {
        *slot = Arc::default();
    }
}

/// Cuts commands into goes of bounded count and size.
fn portions<'a, 'b>(commands: &'a [Command<'b>]) -> Vec<&'a [Command<'b>]> {
    let mut portions = Vec::new();
    let (mut first, mut size) = (0, 0);
    for (index, command) in commands.iter().enumerate() {
        let more = command.size();
        if index > first && (size + more > MAX_REQUEST || index - first >= MAX_TOGETHER) {
            portions.push(&commands[first..index]);
            (first, size) = (index, 0);
        }
        size += more;
    }
    if first < commands.len() {
        portions.push(&commands[first..]);
    }
    portions
}

/// The beginning of the name of a register.
const REGISTER: &str = "%r";

/// A call connects anew at most this often before it gives up: once where the old connection is dead, once
/// where an attempt before it failed.
const MAX_DIALS: usize = 3;
/// The time for which a failed attempt is also the answer for those that come right after it.
const REDIAL_PAUSE: Duration = Duration::from_millis(100);
/// The most commands in one go.
const MAX_TOGETHER: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(url: &str) -> Servers {
        Servers::new(Arc::new(MemcachedConfig::parse(url).unwrap()))
    }

    #[test]
    fn every_name_has_a_key_that_the_protocol_can_carry() {
        let servers = servers(&format!("memcached://h?prefix={}", "p".repeat(64)));
        for name in ["a".to_owned(), "a b\u{a0}é%~".to_owned(), "é".repeat(256), "x".repeat(512)] {
            let key = servers.key(&Resource::new(&name).unwrap()).unwrap();
            assert!(
                key.as_str().len() <= MAX_KEY && key.as_str().bytes().all(|byte| byte.is_ascii_graphic())
            );
        }
        let key = servers.key(&Resource::new("a/b c").unwrap()).unwrap();
        assert_eq!(servers.named_by(key.as_str()), Some("a/b%20c"));
        assert_eq!(servers.named_by("other"), None);
    }

    #[test]
    fn large_batches_go_in_portions() {
        let key = Key::new("k".to_owned()).unwrap();
        let value = vec![0; 1024 * 1024];
        let life = crate::protocol::command::Life::of(Duration::from_secs(2));
        let large: Vec<Command<'_>> =
            (0..9).map(|_| Command::Add { key: &key, life, value: &value }).collect();
        assert_eq!(portions(&large).iter().map(|portion| portion.len()).collect::<Vec<_>>(), [3, 3, 3]);
        let small: Vec<Command<'_>> = (0..1_001).map(|_| Command::Look { key: &key }).collect();
        assert_eq!(portions(&small).iter().map(|portion| portion.len()).collect::<Vec<_>>(), [500, 500, 1]);
        assert!(portions(&[]).is_empty());
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_unavailable_and_nothing_was_sent() {
        // Nothing listens on the first port of a machine.
        let servers = servers("memcached://127.0.0.1:1");
        let failure = servers.connect().await.unwrap_err();
        assert!(failure.is_transient(), "{failure}");
        assert_eq!(failure.effect, leasehold_core::Effect::None);
        assert!(failure.detail().contains("nothing listens there"), "{failure}");
    }
}
