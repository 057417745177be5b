-- Takes the lock where it is free; asked again by an owner, answers the same and keeps the lease.
--
-- KEYS  lock token claims
-- ARGV  owner ttl kind note tag
--   kind  m: the mutex; r: a reader; w: the writer
-- Answers {1, fence} | {0, owners ahead, milliseconds until the last of them ends, -1 where it never does}.
local lock, token, claims = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, kind, note, tag = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

local function write_claim()
  local seq = redis.call('INCR', token)
  redis.call('HSET', claims, owner, seq .. ':' .. note)
  redis.call('PEXPIRE', claims, math.max(redis.call('PTTL', claims), ttl + SLACK))
  return { 1, seq }
end

local seen, foreign = read(lock)
if foreign then return foreign end
local reading = tidy(lock, claims, tag, seen)

if seen.owners[owner] then
  keep(lock, ttl)
  keep(claims, ttl + SLACK)
  if seen.owners[owner].kind == 'r' then keep(tag .. ':' .. owner .. ':rwlock_timeout:1', ttl) end
  local seq = string.match(redis.call('HGET', claims, owner) or '', '^(%d+):')
  return seq and { 1, tonumber(seq) } or write_claim()
end

if seen.count > 0 and not (kind == 'r' and seen.mode == 'read') then
  local left = redis.call('PTTL', lock)
  if seen.mode == 'read' then left = math.min(left, reading) end
  return { 0, seen.count, left }
end

-- What may be refused, because memory has run out, comes first.
redis.call('HSET', lock, kind == 'w' and owner .. ':write' or owner, 1)
if kind == 'r' then
  redis.call('HSET', lock, 'mode', 'read')
  redis.call('SET', tag .. ':' .. owner .. ':rwlock_timeout:1', 1, 'PX', ttl)
elseif kind == 'w' then
  redis.call('HSET', lock, 'mode', 'write')
end
redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
return write_claim()
