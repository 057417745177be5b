-- Ends the lock of one claim.
--
-- KEYS  lock
-- ARGV  id channel
-- Answers 1 where the lock was there.
local found = redis.call('HMGET', KEYS[1], 'id', 'fence')
if found[1] ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
-- An attempt that came to nothing tells nobody: those who wait, wait for a holder.
if found[2] and ARGV[2] ~= '' then redis.pcall('PUBLISH', ARGV[2], '-') end
return 1
