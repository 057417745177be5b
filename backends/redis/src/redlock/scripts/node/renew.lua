-- Extends the locks of granted claims, of any resources.
--
-- KEYS  lock, for each claim
-- ARGV  id ttl fence, for each claim
--   fence  if the caller knows that the claim was granted, else empty
-- Returns for each claim 1 if its lock runs at least that long, 0 if there is none, 2 otherwise.
local function renew(lock, id, ttl, fence)
  local found = redis.call('HMGET', lock, 'id', 'fence')
  if not found[1] then return redis.call('EXISTS', lock) == 0 and 0 or 2 end
  if found[1] ~= id or not (found[2] or fence ~= '') then return 2 end
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
  if not found[2] then redis.call('HSET', lock, 'fence', fence) end
  return 1
end

local answers = {}
for i = 1, #KEYS do
  -- An error of one claim must not block the rest of the batch.
  local ours, answer = pcall(renew, KEYS[i], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i])
  answers[i] = ours and answer or 2
end
return answers
