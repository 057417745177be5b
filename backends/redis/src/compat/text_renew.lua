-- Keeps the lease of whoever holds the lock.
--
-- KEYS  lock
-- ARGV  id ttl
-- Answers 1 where the claim holds it, 0 where it is gone.
local value = ask('GET', KEYS[1])
if not value or written_id(value) ~= ARGV[1] then return gone(KEYS[1]) end
keep(KEYS[1], tonumber(ARGV[2]))
return 1
