//! Registers: a string each, compared and set by a script, announced on the channel of its resource.
//!
//! Ground rules: the server decides. The writer draws a stamp at random, so that one that comes back
//! after a failover still belongs to the same value, and a request that the network repeats is one
//! write.

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD_NO_PAD, Engine as _};
use leasehold_backend::changes::until_changed;
use leasehold_backend::random;
use leasehold_core::{
    Effect, Failure, Patience, Profile, Put, RegisterPromise, Registered, Registers, Resource, Stamp,
    WaitMode,
};
use redis::Value;
use tokio::sync::Mutex;

use crate::backend::RedisBackend;
use crate::net::request::Request;
use crate::net::subscriber::Subscription;
use crate::protocol::keys::Keys;
use crate::protocol::reply;
use crate::protocol::scripts::{self, Script};
use crate::wait::polling::TICK;

/// Returns what a server of this profile promises of its registers.
pub(crate) fn promise(profile: &Profile) -> RegisterPromise {
    RegisterPromise::new(MAX_BYTES, profile.waiting, profile.durability).forgets()
}

impl RedisBackend {
    fn request(&self, script: &'static LazyLock<Script>, keys: &Keys, args: Vec<String>) -> Request {
        let args = std::iter::once(keys.hashed_name.clone()).chain(args).collect();
        Request { script, keys: vec![keys.key("value")], args, confirm: None }
    }

    /// Runs a request for a register. After a write of this client that was not confirmed, any answer has to be: that
    /// write may be what is found.
    async fn run_confirmed(
        &self,
        at: &Resource,
        keys: &Keys,
        mut request: Request,
    ) -> Result<Value, Failure> {
        let doubt = self.doubts.of(at);
        if doubt.is_some() {
            request.confirm = self.confirm(|_| true);
            request.keys.push(keys.key("confirm"));
        }
        let answer = self.servers.run(&request, self.config.timeout).await?;
        if let Some(doubt) = doubt {
            self.doubts.end(at, doubt);
        }
        Ok(answer)
    }
}

#[async_trait]
impl Registers for RedisBackend {
    fn promise(&self) -> &RegisterPromise {
        &self.registers
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        let keys = Keys::of(&self.config.prefix, at);
        let request = self.request(&scripts::READ_REGISTER, &keys, Vec::new());
        registered(self.run_confirmed(at, &keys, request).await?)
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        self.registers.check(put)?;
        let keys = Keys::of(&self.config.prefix, at);
        let (stamp, value) = match &put.value {
            Some(value) => (random_stamp()?, BASE64_STANDARD_NO_PAD.encode(value)),
            None => (String::new(), String::new()),
        };
        // One more than asked for, because the server may count from the beginning of a millisecond.
        let keep = put.keep.map_or(0, |keep| keep.min(MAX_KEEP).as_millis() + 1);
        let args =
            vec![seen.as_str().to_owned(), stamp.clone(), keep.to_string(), value, self.wake_channel(&keys)];
        let mut request = self.request(&scripts::SWAP_REGISTER, &keys, args);
        request.confirm = self.confirm(|answer| *answer == Value::Int(1));
        let answer = self.run_confirmed(at, &keys, request).await;
        if self.config.replicas > 0 && answer.as_ref().is_err_and(|failure| failure.effect == Effect::Unknown)
        {
            self.doubts.begin(at);
        }
        let done = reply::existed(answer?)?;
        Ok(done.then_some(Stamp::new(stamp)))
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        let channel = Keys::of(&self.config.prefix, at).channel(self.scope);
        if self.registers.waiting == WaitMode::Polls {
            return Registers::read(self, at).await;
        }
        let subscription = Mutex::new(self.subscribers.join(&channel));
        let look = || async {
            let found = Registers::read(self, at).await?;
            let left = found.left.map_or(Duration::MAX, |left| left.saturating_add(TICK));
            let pause = move |events: &Subscription| {
                left.min(if events.is_active() { LOOK_AGAIN } else { POLL_WHILE_DISCONNECTED })
            };
            Ok((found, self.subscribers.next(&subscription, &channel, pause)))
        };
        until_changed(patience, |found| found.stamp != *seen, look).await
    }
}

/// Reads the answer of the script `read_register`.
fn registered(answer: Value) -> Result<Registered, Failure> {
    let Value::Array(parts) = answer else { return Err(reply::not_understood()) };
    match &parts[..] {
        [] => Ok(Registered { value: None, stamp: Stamp::new(""), left: None }),
        [Value::BulkString(stamp), Value::BulkString(value), Value::Int(left)] => {
            let stamp = std::str::from_utf8(stamp).map_err(|_| reply::not_understood())?;
            let value = BASE64_STANDARD_NO_PAD.decode(value).map_err(|_| reply::not_understood())?;
            let left = u64::try_from(*left).ok().map(Duration::from_millis);
            Ok(Registered { value: Some(value), stamp: Stamp::new(stamp.to_owned()), left })
        }
        _ => Err(reply::not_understood()),
    }
}

fn random_stamp() -> Result<String, Failure> {
    random::number().map(|number| format!("{number:016x}"))
}

const MAX_BYTES: usize = 512 * 1024;
/// A hundred years; the server counts no further than some ten million.
const MAX_KEEP: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Longest time between two looks of a waiter, in case a notification was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The same while nothing can be received.
const POLL_WHILE_DISCONNECTED: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(left: i64) -> Value {
        let texts = [&b"00ff"[..], b"AP8"].map(|text| Value::BulkString(text.to_vec()));
        Value::Array(texts.into_iter().chain([Value::Int(left)]).collect())
    }

    #[test]
    fn an_answer_is_read() {
        let found = registered(answer(-1)).unwrap();
        assert_eq!((found.value.as_deref(), found.left), (Some(&[0, 255][..]), None));
        assert_eq!(found.stamp.as_str(), "00ff");
        assert_eq!(registered(answer(1500)).unwrap().left, Some(Duration::from_millis(1500)));
        assert_eq!(registered(Value::Array(Vec::new())).unwrap().stamp.as_str(), "");
        for bad in [Value::Nil, Value::Array(vec![Value::Int(1)])] {
            assert!(registered(bad).is_err());
        }
    }
}
