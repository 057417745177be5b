-- Extends the locks of granted claims, of any resources.
--
-- KEYS  lock, for each claim
-- ARGV  id ttl fence, for each claim
--   fence  if the caller knows that the claim was granted, else empty
-- Returns for each claim 1 if its lock runs at least that long, 0 if there is none, 2 otherwise.
local function renew(lock, id, ttl, fence)
  local found = redis.pcall('HMGET', lock, 'id', 'fence')
  if found.err then
    -- A key of another type is another's. Any other refusal says nothing about the claim.
    if string.find(found.err, 'WRONGTYPE', 1, true) then return 2 end
    return found
  end
  if not found[1] then return redis.call('EXISTS', lock) == 0 and 0 or 2 end
  if found[1] ~= id or not (found[2] or fence ~= '') then return 2 end
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
  if not found[2] then redis.call('HSET', lock, 'fence', fence) end
  return 1
end

local answers = {}
for i = 1, #KEYS do
  local answer = renew(KEYS[i], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i])
  if type(answer) == 'table' then return answer end
  answers[i] = answer
end
return answers
