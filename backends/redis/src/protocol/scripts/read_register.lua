-- Reads a register. Changes nothing of it.
--
-- KEYS  value, and one to write where replicas have to confirm what is found
-- ARGV  name
--   name  of the resource if its keys carry only a hash, else empty
-- Returns {stamp, value, milliseconds left (negative: no expiry)}, or {} if there is no value.
local found, foreign = read_register(KEYS[1], ARGV[1])
if foreign then return foreign end
local refused = refuse_as_replica(KEYS[1])
if refused then return refused end
write_for_replicas(KEYS[2])
if not found then return {} end
return { found.stamp, found.value, redis.call('PTTL', KEYS[1]) }
