-- Takes the lock where it is free; asked again by its holder, answers the same and keeps the lease.
--
-- KEYS  lock
-- ARGV  id ttl value
-- Answers {1, 0} | {0, 1, milliseconds until the holder's lease ends, -1 where it never does}.
local value, foreign = ask('GET', KEYS[1])
if foreign then return foreign end
if not value then
  redis.call('SET', KEYS[1], ARGV[3], 'NX', 'PX', ARGV[2])
  return { 1, 0 }
end
if written_id(value) == ARGV[1] then
  keep(KEYS[1], tonumber(ARGV[2]))
  return { 1, 0 }
end
return refuse_as_replica(KEYS[1]) or { 0, 1, redis.call('PTTL', KEYS[1]) }
