-- Takes the lock where it is free; asked again by an owner, answers the same and keeps the lease.
--
-- KEYS  lock token claims
-- ARGV  owner ttl kind note tag verb channel
--   kind     m: the mutex; r: a reader; w: the writer
--   verb     PUBLISH, or SPUBLISH for messages in both forms, as for `redisson_release.lua`
--   channel  on which the release is published
-- Answers {1, fence} | {0, owners ahead, milliseconds until the last of them ends, -1 where it never does}.
local lock, token, claims = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, kind, note, tag = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local verb, channel = ARGV[6], ARGV[7]

local reads = tag .. ':' .. owner .. ':rwlock_timeout:1'

-- The refusal of a key beside the lock that another program uses.
local function not_ours(key) return redis.error_reply('FOREIGN ' .. key .. ' is not what is kept about a lock') end

-- Takes the next number, and writes it down with the note. Answers nil and the refusal where the token is no counter.
local function write_claim()
  local seq = redis.pcall('INCR', token)
  if type(seq) == 'table' then
    for _, part in ipairs({ 'WRONGTYPE', 'not an integer', 'overflow' }) do
      if string.find(seq.err, part, 1, true) then return nil, not_ours(token) end
    end
    return nil, seq
  end
  redis.call('HSET', claims, owner, seq .. ':' .. note)
  redis.call('PEXPIRE', claims, math.max(redis.call('PTTL', claims), ttl + SLACK))
  return seq
end

-- Returns an error if this user may not publish the release: those who wait would sleep until the lease ends. Servers
-- before 7.0 have no such check.
local function refuse_as_mute()
  if not redis.acl_check_cmd then return nil end
  for _, publish in ipairs({ 'PUBLISH', verb }) do
    if not redis.acl_check_cmd(publish, channel, '') then
      return redis.error_reply('NOPERM this user may not ' .. publish .. ' to the channel ' .. channel)
    end
  end
end

local seen, foreign = read(lock)
if foreign then return foreign end
local written, other = ask('HGET', claims, owner)
if other then return not_ours(claims) end
local reading = tidy(lock, claims, tag, seen, owner)

if seen.owners[owner] then
  if seen.owners[owner].kind == 'r' then keep(reads, ttl) end
  keep(lock, ttl)
  keep(claims, ttl + SLACK)
  local seq, refused = string.match(written or '', '^(%d+):'), nil
  if not seq then seq, refused = write_claim() end
  return refused or { 1, tonumber(seq) }
end

local mute = refuse_as_mute()
if mute then return mute end

if seen.count > 0 and not (kind == 'r' and seen.mode == 'read') then
  local left = lasts(lock)
  if seen.mode == 'read' then left = math.min(left, reading) end
  return refuse_as_replica(lock) or { 0, seen.count, answered(left) }
end

-- What may be refused comes first, and keeps nobody out: for want of memory or of rights, or because a key is another
-- program's. The lock itself then needs no right that was not used before.
if kind == 'r' then redis.call('SET', reads, 1, 'PX', ttl) end
local seq, refused = write_claim()
if refused then return refused end
if kind == 'm' then
  redis.call('HSET', lock, owner, 1)
elseif kind == 'r' then
  redis.call('HSET', lock, 'mode', 'read', owner, 1)
else
  redis.call('HSET', lock, 'mode', 'write', owner .. ':write', 1)
end
if seen.count == 0 then redis.call('PEXPIRE', lock, ttl) else keep(lock, ttl) end
return { 1, seq }
