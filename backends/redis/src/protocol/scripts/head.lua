-- Every script has this part: the keys of one resource, and its lock in a single value. Only the shortcuts for a free lock
-- and for a single value come before it, because each function that a script creates costs time.
--
-- Rules: a key comes from KEYS, or has the tag of one in KEYS, except the floor. Times are of the server, in milliseconds.
-- A script reads keys that may hold a foreign type before it writes, or undoes what it wrote. Its first write is one that
-- may be refused (no memory) or one that never is, so a refused script has changed nothing.
--
-- A member is `<claim id, 32 hex digits>:<weight>:<capacity>`. The entry of a claim is
-- `<fence, 0 while it waits>:<since>:<weight>:<capacity>:<note>`.
--   held    string, if the claim was alone since its grant; expires with the lease: `<member><mark><since>:<note>`;
--           its fence is the last one granted; without `since`, that is when the clock showed this fence; the mark is `=`,
--           or `!` if its release has to be published, because a client subscribed that is not in the queue;
--           else a sorted set: member -> end of its lease
--   queue    sorted set, the queue: member -> its position, which rises with each arrival
--   places  sorted set: member -> when it leaves the queue unless extended
--   claims  hash: claim id -> its entry; and, if many hold, `load` ->
--           `<the last fence> <number of holders>`, and for each of their shares ` :<weight>:<capacity>=<number>`
--   fence   string: the last fence granted, followed by the resource's name if the keys carry only its hash; `+` follows
--           a fence without suffix and name if claims may wait, because the shortcut for a free lock does not look for them
--   floor   string, one for all resources of a slot: the highest fence that was removed from it
--
-- A fence is `<seq>`, or `<epoch>.<seq>` if the server is elected. The latter is stored with a suffix: `@` and the
-- replication id under which it was granted.
--
-- A string becomes a sorted set when a second claim holds or waits. The reverse never happens: a claim is granted as a
-- string if nothing else is there. The type of the key refuses clients that know only sorted sets.

-- The server's time: the reply to TIME, and its milliseconds.
local clock, now
local function read_clock()
  clock = redis.call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function id_of(member) return string.sub(member, 1, 32) end

-- Returns the key or the channel of another part of the resource of `held`.
local function beside(held, part) return string.sub(held, 1, -5) .. part end

-- Returns a lock in a single value as it is stored, or false: others may be sorted sets of ours, to which MGET does not object.
local function stored_single(held) return redis.call('MGET', held)[1] end

-- Whether the server knows the condition that a time is later, as Redis does from 7.0 on.
local knows_later = true

-- Keeps a key until `stop` at least; a later end stays. It always writes, so that a replica refuses.
local function extend(key, stop)
  if knows_later then
    local answer = redis.pcall('PEXPIREAT', key, stop, 'GT')
    if answer == 1 then return end
    knows_later = answer == 0
  end
  -- Its end is later or unknown, or it has none. The clock is read after the remaining time: some servers give each command of
  -- a script another time, which must not shorten a lease.
  local left = redis.call('PTTL', key)
  read_clock()
  redis.call('PEXPIREAT', key, math.max(stop, now + left))
end

-- How long a lock in a single value counts as held after its expiry was removed: a day, the longest lease.
local MAX_TTL = 86400000

-- Returns the end of a single value's lease, never too early: the clock is read after the remaining time.
local function single_end(held)
  local left = redis.call('PTTL', held)
  if left < 0 then left = MAX_TTL end
  read_clock()
  return now + left
end

-- Returns the parts of a lock in a single value, or an error if the string is not ours.
local function parse_single(held, stored)
  local member, mark, since, note = string.match(stored, '^(%x+:%d+:%d+)([=!])(%d*):(.*)$')
  if member and string.find(member, ':', 1, true) == 33 then
    return { member = member, mark = mark, since = since, note = note }
  end
  return nil, redis.error_reply('FOREIGN no lock of leasehold is stored in ' .. held)
end

-- Returns the entry of the claim in a single value, which has the last fence.
local function entry_of(single, record)
  local since = single.since
  if since == '' then since = string.format('%.0f', record.seq > 0 and math.floor(record.seq / 1000) or now) end
  local fence = string.match(record.text, '^[%d.]+') or '0'
  return fence .. ':' .. since .. string.sub(single.member, 33) .. ':' .. single.note
end

-- Marks a single value, so that its release is published. Returns false if that is refused (no memory, or no right to
-- write): then the client notices the release when it looks again.
local function mark_single(held, single)
  if single.mark == '!' then return true end
  local done = redis.pcall('SET', held, single.member .. '!' .. single.since .. ':' .. single.note, 'XX', 'KEEPTTL')
  return done and done.ok ~= nil
end

-- Returns the publish command: only a slot's servers carry a channel that ends so. A server without the check of rights is
-- one before 7.0, which has no channels of slots.
local function publish_on(channel)
  return redis.acl_check_cmd and string.sub(channel, -7) == '}:swake' and 'SPUBLISH' or 'PUBLISH'
end

-- Returns an error if this user may not publish to the channel: called waiters would get no message. Servers
-- before 7.0 have no such check; a refused message there goes unnoticed.
local function refuse_as_mute(channel)
  if channel == '' or not redis.acl_check_cmd or redis.acl_check_cmd(publish_on(channel), channel, '') then return nil end
  return redis.error_reply('NOPERM this user may not ' .. publish_on(channel) .. ' to the channel ' .. channel)
end

-- Splits a text that begins with a fence into its epoch (0 if none), its counter, and the rest.
local function parse_fence(text)
  local epoch, seq, rest = string.match(text, '^(%d+)%.(%d+)(.*)$')
  if not epoch then
    epoch = '0'
    seq, rest = string.match(text, '^(%d+)(.*)$')
  end
  return tonumber(epoch), tonumber(seq), rest
end

-- Returns the stored fence and its replication id, or an error if it is foreign or of another name.
local function read_fence(fence, name)
  local stored = redis.call('GET', fence)
  if not stored then return { epoch = 0, seq = 0, by = '', text = '', mark = '' } end
  local epoch, seq, rest = parse_fence(stored)
  local mark, by, whose = string.match(rest or '', '^(%+?)@?(%x*) ?(.*)$')
  if not seq then return nil, redis.error_reply('FOREIGN no fence of leasehold is stored in ' .. fence) end
  if whose ~= name then return nil, redis.error_reply('FOREIGN ' .. fence .. ' belongs to a resource of another name') end
  return { epoch = epoch, seq = seq, by = by, text = string.match(stored, '^[^ +]*'), mark = mark }
end

-- Returns the error of a replica, whose copy may lag, or of a server whose cluster is down: only the server that decides
-- may report that something is gone. Changes nothing, even if the key is a string. Other refusals are ignored.
local function refuse_as_replica(key)
  local answer = redis.pcall('ZREM', key, '')
  if type(answer) ~= 'table' or not answer.err then return nil end
  if string.find(answer.err, 'READONLY', 1, true) then return answer end
  return string.find(answer.err, 'while the cluster is down', 1, true) and answer or nil
end
