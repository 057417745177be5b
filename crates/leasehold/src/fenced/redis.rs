//! A key of Redis protected by a fence: the check and the work are one script, so nothing comes between them.
//!
//! Beside the key is `{key}:fenced`, in the same slot of a cluster, with the newest fence as text. The
//! texts are compared byte by byte, because Lua's own comparison follows the server's locale.

use async_trait::async_trait;
use leasehold_core::Fence;

use super::{NoFence, Stale, compare, required};

/// A connection that runs scripts, of any client of Redis.
///
/// With the crate `redis`, for instance, it is `cmd("EVAL")` with the script, the number of keys, the
/// keys and the arguments, read as a list of byte strings: see the example of [`FencedRedis`].
#[async_trait]
pub trait RedisEval: Send + Sync {
    /// The error of a script that was not run, or failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Runs `EVAL script keys… args…` and returns its list of strings.
    async fn eval(&self, script: &str, keys: &[&[u8]], args: &[&[u8]]) -> Result<Vec<Vec<u8>>, Self::Error>;
}

/// A key of Redis that only the newest holder may read or change.
///
/// # Promises
/// After it was opened with a fence, no process with an older one reads or changes it through this
/// type. If the fence is gone, evicted or flushed, only holders that open the key anew are accepted.
///
/// # Does not promise
/// Clients that do not use this type are not stopped. The fence is kept only as well as the server keeps
/// its data: a failover to a replica that had not received the raised fence lets the older holder in
/// again, as it brings back the older value.
///
/// # Cancel safety
/// If the future is dropped, the work may or may not be done.
///
/// ```no_run
/// use async_trait::async_trait;
/// use leasehold::{FenceGrade, Client, fenced::{FencedRedis, RedisEval}};
///
/// struct Connection(redis::aio::MultiplexedConnection);
///
/// #[async_trait]
/// impl RedisEval for Connection {
///     type Error = redis::RedisError;
///
///     async fn eval(&self, script: &str, keys: &[&[u8]], args: &[&[u8]]) -> redis::RedisResult<Vec<Vec<u8>>> {
///         let mut command = redis::cmd("EVAL");
///         command.arg(script).arg(keys.len()).arg(keys).arg(args);
///         command.query_async(&mut self.0.clone()).await
///     }
/// }
///
/// # async fn pay(client: redis::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let locks = Client::open("redis://127.0.0.1").await?;
/// let guard = locks.mutex("account/7").require_fencing(FenceGrade::BestEffort)?.lock().await?;
/// let connection = Connection(client.get_multiplexed_async_connection().await?);
/// let account = FencedRedis::open(connection, "account/7", guard.fence()).await?;
/// let balance: i64 = match account.get().await? {
///     Some(text) => String::from_utf8(text)?.parse()?,
///     None => 0,
/// };
/// account.set((balance - 1).to_string().as_bytes()).await?; // refused if a later holder was here
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FencedRedis<C> {
    connection: C,
    key: Vec<u8>,
    fence_key: Vec<u8>,
    fence: Fence,
}

/// The reason why a fenced key was not read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FencedRedisError<E> {
    /// A newer holder was here; nothing was read or changed.
    #[error(transparent)]
    Stale(Stale),
    /// The lock has no fence to compare; nothing was sent.
    #[error(transparent)]
    NoFence(NoFence),
    /// The server has forgotten the fence with which it was opened. It may have forgotten the value as well.
    #[error(
        "the server no longer has the fence {yours}: open it again, and check whether its value still exists"
    )]
    Forgotten {
        /// The fence that was presented.
        yours: Fence,
    },
    /// The value beside the key is not a fence. It is left as it is: starting again at nothing would
    /// let old holders in.
    #[error("{found:?} beside the key is not a fence; restore it, or delete it once no client uses the key")]
    Damaged {
        /// The value beside the key.
        found: String,
    },
    /// The key cannot have a fence in its own slot; nothing was sent.
    #[error("a key with `}}` in it needs a hash tag, `{{tag}}`, so that its fence lies in the same slot")]
    NoSlot,
    /// The answer of the script is not one that it gives.
    #[error("the server's answer is not that of the script: {0}")]
    Answer(String),
    /// The connection failed, or the script did; it may have been run.
    #[error("redis: {0}")]
    Connection(E),
}

impl<C: RedisEval> FencedRedis<C> {
    /// Opens `key` on behalf of `fence`, and excludes every older one.
    ///
    /// # Cancel safety
    /// If the future is dropped, older fences may or may not be excluded.
    ///
    /// # Errors
    /// `Stale` if a newer fence was here; `NoFence`; `NoSlot`; `Damaged`; `Connection`.
    pub async fn open(
        connection: C,
        key: impl Into<Vec<u8>>,
        fence: impl Into<Option<Fence>>,
    ) -> Result<FencedRedis<C>, FencedRedisError<C::Error>> {
        let fence = required(fence).map_err(FencedRedisError::NoFence)?;
        let key = key.into();
        let fence_key = fence_key(&key).ok_or(FencedRedisError::NoSlot)?;
        let opened = FencedRedis { connection, key, fence_key, fence };
        opened.run(&format!("{CHECK}{RAISE}"), &[]).await?;
        Ok(opened)
    }

    /// Returns the value; `None` if there is none.
    ///
    /// # Errors
    /// `Stale` if a newer fence was here since; `Forgotten`; `Damaged`; `Connection`.
    pub async fn get(&self) -> Result<Option<Vec<u8>>, FencedRedisError<C::Error>> {
        Ok(self.eval("local v = redis.call('get', KEYS[1]) return v and { v } or {}", &[]).await?.pop())
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// As [`FencedRedis::get`]; nothing was written if it is `Stale`.
    pub async fn set(&self, value: &[u8]) -> Result<(), FencedRedisError<C::Error>> {
        self.eval("redis.call('set', KEYS[1], ARGV[1]) return {}", &[value]).await.map(drop)
    }

    /// Runs a custom script behind the fence: `KEYS[1]` is the key, of any type, `ARGV` are the given
    /// arguments, and the script returns a list of strings.
    ///
    /// `script` is part of the program: never build it from received data, pass that as arguments.
    ///
    /// # Errors
    /// As [`FencedRedis::get`].
    pub async fn eval(
        &self,
        script: &str,
        args: &[&[u8]],
    ) -> Result<Vec<Vec<u8>>, FencedRedisError<C::Error>> {
        self.run(&format!("{CHECK}{OPENED}local function work(KEYS, ARGV)\n{script}\nend\n{WORK}"), args)
            .await
    }

    async fn run(&self, script: &str, args: &[&[u8]]) -> Result<Vec<Vec<u8>>, FencedRedisError<C::Error>> {
        let fence = self.fence.to_string();
        let mut all: Vec<&[u8]> = vec![fence.as_bytes()];
        all.extend_from_slice(args);
        let keys: [&[u8]; 2] = [&self.fence_key, &self.key];
        let answer = self.connection.eval(script, &keys, &all).await.map_err(FencedRedisError::Connection)?;
        let mut answer = answer.into_iter();
        let found = |answer: &mut std::vec::IntoIter<Vec<u8>>| {
            answer.next().map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
        };
        match answer.next().as_deref() {
            Some(b"ok") => Ok(answer.collect()),
            Some(b"stale") => {
                let found = found(&mut answer);
                let seen = found.parse().map_err(|_| FencedRedisError::Damaged { found })?;
                // Invariant: the script reports newer fences only; a server that reports others
                // is not believed.
                Err(compare(self.fence, seen).err().map_or_else(
                    || FencedRedisError::Answer(format!("{seen} is called newer than {}", self.fence)),
                    FencedRedisError::Stale,
                ))
            }
            Some(b"forgotten") => Err(FencedRedisError::Forgotten { yours: self.fence }),
            Some(b"damaged") => Err(FencedRedisError::Damaged { found: found(&mut answer) }),
            other => {
                let text = other.map(|other| String::from_utf8_lossy(other).into_owned());
                Err(FencedRedisError::Answer(text.unwrap_or_else(|| "an empty list".to_owned())))
            }
        }
    }
}

/// Returns the key of the fence: in the slot of the key, however that slot is determined.
fn fence_key(key: &[u8]) -> Option<Vec<u8>> {
    let open = key.iter().position(|byte| *byte == b'{');
    let tag = open.and_then(|open| key[open + 1..].iter().position(|byte| *byte == b'}'));
    match tag {
        // It has a hash tag, which stays the first one.
        Some(length) if length > 0 => Some([key, b":fenced"].concat()),
        _ if key.contains(&b'}') => None,
        _ => Some([b"{", key, b"}:fenced"].concat()),
    }
}

/// Ends the script if the stored fence is newer. `KEYS[1]` is the fence, `ARGV[1]` the holder's.
const CHECK: &str = "\
local mine, seen = ARGV[1], redis.call('get', KEYS[1]) or ''
if seen ~= '' and not string.match(seen, '^[e%d][%d.]+$') then return { 'damaged', seen } end
for i = 1, math.max(#mine, #seen) do
  local a, b = string.byte(mine, i) or 0, string.byte(seen, i) or 0
  if a > b then break end
  if a < b then return { 'stale', seen } end
end
";
/// Raises the fence.
const RAISE: &str = "if mine ~= seen then redis.call('set', KEYS[1], mine) end return { 'ok' }\n";
/// Ends the script if the fence was not raised to the holder's.
const OPENED: &str = "if mine ~= seen then return { 'forgotten' } end\n";
/// Calls the holder's own script with the holder's own key and arguments.
const WORK: &str = "\
local args = {}
for i = 2, #ARGV do args[i - 1] = ARGV[i] end
local answer = { 'ok' }
for _, text in ipairs(work({ KEYS[2] }, args) or {}) do answer[#answer + 1] = tostring(text) end
return answer
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_lies_in_the_slot_of_its_key() {
        let place = |key: &str| fence_key(key.as_bytes()).map(|key| String::from_utf8(key).unwrap());
        assert_eq!(place("stock/42").as_deref(), Some("{stock/42}:fenced"));
        assert_eq!(place("a{shop}b").as_deref(), Some("a{shop}b:fenced"));
        assert_eq!(place("a{b").as_deref(), Some("{a{b}:fenced"));
        assert_eq!((place("a}b"), place("a{}b"), place("}")), (None, None, None));
    }
}
