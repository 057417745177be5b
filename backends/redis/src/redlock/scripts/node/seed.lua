-- Locks a free resource for a claim that is known to hold. No second round names its stamp, and it has
-- overtaken every earlier request of the claim.
--
-- KEYS  lock
-- ARGV  id ttl fence note name stamp
-- Returns 1 if it locked it.
local lock, id, ttl, fence, note, name = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
if redis.call('EXISTS', lock) == 1 then return 0 end
redis.call('HSET', lock, 'id', id, 'since', millis(), 'note', note, 'fence', fence, 'stamp', ARGV[6])
if name ~= '' then redis.call('HSET', lock, 'name', name) end
redis.call('PEXPIRE', lock, ttl)
return 1
