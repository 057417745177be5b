-- Ends one claim, granted or waiting, and calls the claims whose turn comes by it. This part ends a single value;
-- `release.lua` does the rest.
--
-- KEYS  held queue places claims fence
-- ARGV  member channel
--   channel  on which the claims that this calls are notified; empty to publish nothing
-- Returns 1 if the claim was there, 0 if it was gone.
local held, queue, places, claims, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local own, channel = ARGV[1], ARGV[2]

-- A single value has no waiters in the queue. Other subscribers are notified.
if is_string(held) then
  local member, written = read_single(held)
  if not member then return written end
  if id_of(member) ~= id_of(own) then return refuse_as_replica(held) or 0 end
  redis.call('DEL', held)
  if channel ~= '' then redis.pcall(publish_on(channel), channel, '-') end
  return 1
end
