-- Removes the fences of unused resources, and keeps the highest of them in the floor of their slot.
--
-- KEYS  held queue places claims fence floor, for each resource
-- ARGV  unused epoch
--   unused  microseconds for which nothing was granted
--   epoch   in which the client believes that this server decides; 0 without elections
-- Returns the number of removed fences.
local unused, epoch = tonumber(ARGV[1]), tonumber(ARGV[2])

-- Returns whether nothing was granted for long enough, by the fence's counter, which follows the clock. With an epoch it does
-- so only at the start. Then the idle time of the key counts, which is read before GET resets it.
local function is_unused(fence, read)
  if epoch > 0 and redis.call('OBJECT', 'IDLETIME', fence) * 1000000 < unused then return false end
  local _, seq = read()
  return seq and (epoch > 0 or math.max(clock[1] * 1000000 + clock[2] - seq, 0) >= unused)
end

-- Returns whether a key has claims that have not ended, or is of another type.
local function is_living(key) return ask('ZCOUNT', key, '(' .. now, '+inf') ~= 0 end

-- Returns whether a claim holds or waits. The keys of claims that have ended are left for a while, or for ever if their expiry
-- was removed. A claim in `queue` without an end is one whose end was evicted.
local function is_used(held, queue, places, claims)
  if is_living(held) or is_living(places) or not ask('HMGET', claims, '') then return true end
  return (ask('ZCARD', queue) or math.huge) > ask('ZCARD', places)
end

local function remove(held, queue, places, claims, fence, floor)
  if redis.call('EXISTS', fence) == 0 or is_used(held, queue, places, claims) then return 0 end
  local stored
  local function read()
    stored = ask('GET', fence) or ''
    return parse_fence(stored)
  end
  if not is_unused(fence, read) then return 0 end
  local record, last = { parse_fence(stored) }, { parse_fence(redis.call('GET', floor) or '0') }
  -- Deletes nothing. But freeing memory is allowed when memory has run out, and so are later writes of the same script.
  redis.call('DEL', held, queue, places, claims)
  if record[1] > last[1] or record[1] == last[1] and record[2] > last[2] then
    redis.call('SET', floor, string.match(stored, '^[%d.]+'))
  end
  redis.call('DEL', fence)
  return 1
end

local removed = 0
for i = 1, #KEYS, 6 do removed = removed + remove(unpack(KEYS, i, i + 5)) end
return removed
