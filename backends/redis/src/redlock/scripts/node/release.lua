-- Ends the lock of one claim: any lock of it, or only one with one of the stamps.
--
-- KEYS  lock
-- ARGV  id channel [stamp ...]
-- Returns 1 if it ended one.
local found = redis.call('HMGET', KEYS[1], 'id', 'fence', 'stamp')
if found[1] ~= ARGV[1] then return 0 end
local meant = not ARGV[3]
for i = 3, #ARGV do meant = meant or found[3] == ARGV[i] end
if not meant then return 0 end
redis.call('DEL', KEYS[1])
-- An attempt of which no fence was taken publishes nothing: waiters wait for a holder.
if found[2] and ARGV[2] ~= '' then redis.pcall('PUBLISH', ARGV[2], '-') end
return 1
