-- Keeps the lease of whoever holds the lock.
--
-- KEYS  lock
-- ARGV  id ttl
-- Answers 1 where the claim holds it, 0 where it is gone.
local value = ask('GET', KEYS[1])
if not value or written_id(value) ~= ARGV[1] then return refuse_as_replica(KEYS[1]) or 0 end
keep(KEYS[1], tonumber(ARGV[2]))
return 1
