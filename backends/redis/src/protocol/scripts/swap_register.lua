-- Writes a register, or removes what stands in it, if that is still what was seen.
--
-- KEYS  value
-- ARGV  name seen stamp keep value channel
--   name     of the resource where its keys carry only a hash, else empty
--   seen     the stamp of what was seen, empty where that was nothing
--   stamp    of what is to be written, empty where it is to be removed
--   keep     milliseconds after which it is to be forgotten, 0 for never
--   channel  where to tell of it; empty where nothing is to be published
-- Answers 1 where it was done, also by this very request before, and 0 where something else stands there.
local name, seen, stamp, keep, value, channel = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

local found, foreign = read_register(KEYS[1], name)
if foreign then return foreign end
local present = found and found.stamp or ''
if stamp ~= '' and present == stamp then return 1 end
if present ~= seen then return refuse_as_replica(KEYS[1]) or 0 end

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
-- Those who wait in line for a lock of this name pass over such word; those who wait for the register look.
tell(channel, {}, '-')
return 1
