-- Writes or removes a register if it still has the stamp that was seen.
--
-- KEYS  value, and one to write where replicas have to confirm what is found
-- ARGV  name seen stamp keep value channel
--   name     of the resource if its keys carry only a hash, else empty
--   seen     the stamp that was seen, empty if there was none
--   stamp    of the value to write, empty to remove it
--   keep     milliseconds until the value expires, 0 for never
--   channel  to notify; empty to publish nothing
-- Returns 1 if it was done, or if this request wrote the value before; 0 if another stamp or none was found.
local name, seen, stamp, keep, value, channel = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

local found, foreign = read_register(KEYS[1], name)
if foreign then return foreign end
local present = found and found.stamp or ''
if stamp ~= '' and present == stamp then return 1 end
if present ~= seen then
  local refused = refuse_as_replica(KEYS[1])
  if refused then return refused end
  write_for_replicas(KEYS[2])
  return 0
end

if stamp == '' then
  local refused = refuse_as_replica(KEYS[1])
  if refused then return refused end
  if found then redis.call('DEL', KEYS[1]) end
else
  local text = stamp .. ' ' .. name .. '\n' .. value
  if keep > 0 then
    redis.call('SET', KEYS[1], text, 'PX', keep)
  else
    redis.call('SET', KEYS[1], text)
  end
end
-- Queued waiters for a lock of this name do not ask at once; waiters for the register read it.
tell(channel, {}, '-')
return 1
