-- Ends one claim, granted or waiting, and calls the claims whose turn comes through it. This part ends a single value; `release.lua`
-- goes on with the rest.
--
-- KEYS  held line places claims fence
-- ARGV  member channel
--   channel  on which the claims that this calls are notified; empty where nothing is to be published
-- Answers 1 where the claim was there, 0 where it was gone.
local held, line, places, claims, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local own, channel = ARGV[1], ARGV[2]

-- A lock in a single value has no waiters in line. Other subscribers are notified.
if is_string(held) then
  local member, written = read_single(held)
  if not member then return written end
  if id_of(member) ~= id_of(own) then return refuse_as_replica(held) or 0 end
  redis.call('DEL', held)
  if channel ~= '' then redis.pcall(publish_on(channel), channel, '-') end
  return 1
end
