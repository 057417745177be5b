-- The keys of one resource, and its lock while that is a single value: what every script begins with.
--
-- Ground rules: every key comes in through KEYS, but for the floor of `acquire_free.lua`. Time is the server's own, in
-- milliseconds. A script reads whatever may hold a foreign type before it writes, and what it writes first is what may be
-- refused (no memory), so that a refused script has changed nothing.
--
-- A member is `<claim id, 32 hex digits>:<weight>:<capacity>`. What is written about a claim is
-- `<fence, 0 while it waits>:<since>:<weight>:<capacity>:<note>`.
--   held    while one claim holds and none waits, a string that expires with the lease: `<member> <what is written about it>`;
--           else a sorted set: member -> end of its lease
--   line    sorted set: member -> its place, rising with each arrival
--   places  sorted set: member -> when it leaves the line unless it is heard of again
--   claims  hash: claim id -> what is written about it; and, where many hold, `load` ->
--           `<the last fence> <number of holders>`, and for each of their shares ` :<weight>:<capacity>=<number>`
--   fence   string: the last fence granted, followed by the resource's name where the keys carry only its hash
--   floor   string, one for all resources of a slot: the highest fence that was removed from it
--
-- A fence is written `<seq>`, and `<epoch>.<seq>` where the server is elected. The last one then has `@` and the
-- replication id under which it was granted behind it.
--
-- A string becomes a sorted set when a second claim holds or waits, and never the other way: a claim is granted as a
-- string where nothing else is there. A client that knows only sorted sets is refused by the type of the key.

-- The server's time: what TIME answers, and its milliseconds.
local clock, now
local function read_clock()
  clock = redis.call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function id_of(member) return string.sub(member, 1, 32) end

-- Whether a key is a string, as a lock in a single value is. One of another type may be a sorted set of ours.
local function is_string(key) return redis.call('TYPE', key).ok == 'string' end

-- Extends a lock in a single value to `ttl` from now; a longer lease stays. The clock is read after the rest of the lease: some
-- servers give each command of a script another time, and a lease must not become shorter by that. It always writes, so that a
-- replica refuses.
local function extend_single(held, ttl)
  local left = redis.call('PTTL', held)
  read_clock()
  redis.call('PEXPIREAT', held, now + math.max(ttl, left))
end

-- How long a lock in a single value counts as held where its expiry was taken away from it: a day, as long as a lease may be.
local MAX_TTL = 86400000

-- The end of the lease of a lock in a single value; never an earlier time, as the clock is read after the rest of the lease.
local function single_end(held)
  local left = redis.call('PTTL', held)
  if left < 0 then left = MAX_TTL end
  read_clock()
  return now + left
end

-- The member of a lock in a single value and what is written about it, or an error where the string is not ours.
local function read_single(held)
  local member, written = string.match(redis.call('GET', held), '^(%x+:%d+:%d+) (%d[%d.]*:%d+:%d+:%d+:.*)$')
  if member and string.find(member, ':', 1, true) == 33 then return member, written end
  return nil, redis.error_reply('FOREIGN no lock of leasehold is stored in ' .. held)
end

-- A channel that ends so is of its slot, and only the servers of that slot carry it.
local function publish_on(channel) return string.sub(channel, -7) == '}:swake' and 'SPUBLISH' or 'PUBLISH' end

-- An error where this user may not publish to the channel: waiters would be called and never hear of it. Servers older
-- than 7.0 cannot be asked; there the refusal of a message goes unseen.
local function refuse_as_mute(channel)
  if channel == '' or not redis.acl_check_cmd or redis.acl_check_cmd(publish_on(channel), channel, '') then return nil end
  return redis.error_reply('NOPERM this user may not ' .. publish_on(channel) .. ' to the channel ' .. channel)
end

-- The fence at the beginning of a text: its epoch, 0 where there is none, its counter, and what follows.
local function parse_fence(text)
  local epoch, seq, rest = string.match(text, '^(%d+)%.(%d+)(.*)$')
  if not epoch then
    epoch = '0'
    seq, rest = string.match(text, '^(%d+)(.*)$')
  end
  return tonumber(epoch), tonumber(seq), rest
end

-- The fence that was stored and by whom, and an error where it is not ours or belongs to a resource of another name.
local function read_fence(fence, name)
  local stored = redis.call('GET', fence)
  if not stored then return { epoch = 0, seq = 0, by = '', text = '' } end
  local epoch, seq, rest = parse_fence(stored)
  local by, whose = string.match(rest or '', '^@?(%x*) ?(.*)$')
  if not seq then return nil, redis.error_reply('FOREIGN no fence of leasehold is stored in ' .. fence) end
  if whose ~= name then return nil, redis.error_reply('FOREIGN ' .. fence .. ' belongs to a resource of another name') end
  return { epoch = epoch, seq = seq, by = by, text = string.match(stored, '^[^ ]*') }
end

-- Lets a replica refuse, which would otherwise answer from a copy that lags behind: only the server that decides may say that
-- something is gone. It changes nothing, also where the key is a string. Any other refusal is of no interest here.
local function refuse_as_replica(key)
  local answer = redis.pcall('ZREM', key, '')
  return type(answer) == 'table' and answer.err and string.find(answer.err, 'READONLY', 1, true) and answer or nil
end
