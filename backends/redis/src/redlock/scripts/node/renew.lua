-- Extends the locks of granted claims, of any resources.
--
-- KEYS  lock, for each claim
-- ARGV  id ttl fence, for each claim
--   fence  where the caller knows that the claim was granted, else empty
-- Answers for each claim 1 where its lock runs at least that long, 0 where there is none, 2 where it is no such claim's.
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
  -- Whatever goes wrong with one must not keep the rest of the batch from being served.
  local ours, answer = pcall(renew, KEYS[i], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i])
  answers[i] = ours and answer or 2
end
return answers
