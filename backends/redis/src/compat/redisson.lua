-- A lock of Redisson's: a hash of owners. What every script of this dialect begins with.
--
-- RLock            owner -> holds
-- RReadWriteLock   `mode` -> read | write; owner -> holds of a reader; `owner:write` -> holds of the writer. For each hold
--                  of a reader there is a key `<tag>:<owner>:rwlock_timeout:<n>`, which ends with it.
-- An owner is `<uuid>:<thread>`. The tag is the name in braces, or the name alone where it has a brace.
--
-- Ground rules: the key of the lock is declared, and so are ours beside it; keys of readers follow from what the hash
-- holds, as in Redisson itself, and lie in the same slot. A script reads before it writes. What may be refused
-- is written before the lock when it is taken, and after it when it ends.

-- How long what is written about claims outlives them.
local SLACK = 1000
-- More holds than one reader is believed to have.
local MAX_HOLDS = 10000

-- What the hash says: {mode, owners: owner -> {kind, count}, count of owners}; nil where there is another type.
local function read(lock)
  local all, foreign = ask('HGETALL', lock)
  if foreign then return nil, foreign end
  local seen = { owners = {}, count = 0 }
  local fields = {}
  for i = 1, #all, 2 do
    if all[i] == 'mode' then seen.mode = all[i + 1] else fields[all[i]] = tonumber(all[i + 1]) or 1 end
  end
  for field, count in pairs(fields) do
    local owner, kind = field, seen.mode and 'r' or 'm'
    if seen.mode and string.sub(field, -6) == ':write' then owner, kind = string.sub(field, 1, -7), 'w' end
    local known = seen.owners[owner]
    if not known then
      known = { holds = 0 }
      seen.owners[owner] = known
      seen.count = seen.count + 1
    end
    -- A writer may read as well; it is shown, renewed and ended as a writer.
    if known.kind ~= 'w' then known.kind = kind end
    if kind == 'r' then known.holds = count end
    -- Each hold of a reader has a key that is asked for. A number that nobody can have counted up to would keep the server busy.
    if known.holds > MAX_HOLDS or known.holds ~= known.holds then
      return nil, redis.error_reply('FOREIGN ' .. lock .. ' has a reader with ' .. tostring(count) .. ' holds: its count is damaged')
    end
  end
  return seen
end

-- Longer than any lease: the time that is left to a key without an end.
local FOREVER = 2 ^ 53

-- How long a key lasts; less than zero where it is gone.
local function lasts(key)
  local left = redis.call('PTTL', key)
  return left == -1 and FOREVER or left
end

-- The time as scripts answer it: -1 where there is no end.
local function answered(left) return left < FOREVER and left or -1 end

-- How long the last hold of a reader lasts by its own keys; less than zero where all have ended.
local function reads_for(tag, owner, holds)
  local longest = -2
  for n = 1, holds do
    longest = math.max(longest, lasts(tag .. ':' .. owner .. ':rwlock_timeout:' .. n))
  end
  return longest
end

-- The same, as other clients have to see it. A reader of ours has ended with its keys. A Java reader may have lost them:
-- while a thread also writes, the watchdog of some versions of Redisson renews the hash alone. For Redisson, such a reader
-- holds for as long as the hash exists.
local function counts_for(lock, claims, tag, owner, holds)
  local left = reads_for(tag, owner, holds)
  if left > 0 or type(redis.pcall('HGET', claims, owner)) == 'string' then return left end
  return lasts(lock)
end

-- Takes out readers of ours that have ended, whom the hash keeps for as long as another reads; `own` is ours also where
-- its claim is no longer written down. Answers how long the last of the others holds.
local function tidy(lock, claims, tag, seen, own)
  local longest = -2
  if not seen.mode then return longest end
  for owner, known in pairs(seen.owners) do
    if known.kind == 'r' then
      local holds = known.holds
      local left = owner == own and reads_for(tag, owner, holds) or counts_for(lock, claims, tag, owner, holds)
      if left <= 0 then
        redis.call('HDEL', lock, owner)
        redis.pcall('HDEL', claims, owner)
        seen.owners[owner] = nil
        seen.count = seen.count - 1
      end
      longest = math.max(longest, left)
    end
  end
  if seen.count == 0 then
    redis.call('DEL', lock)
    seen.mode = nil
  end
  return longest
end

-- The name by which an onlooker knows an owner, and may break it. One of leasehold's is a claim's id.
local function shown_id(owner)
  local a, b, c, d, e = string.match(owner, '^(%x+)-(%x+)-(%x+)-(%x+)-(%x+):1$')
  local id = a and a .. b .. c .. d .. e
  if id and #id == 32 and not string.find(id, '[^0-9a-f]') then return id end
  return string.sub(redis.sha1hex(owner), 1, 32)
end
