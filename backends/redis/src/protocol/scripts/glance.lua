-- Keeps the places of waiting claims, of any resources, and returns which of them should look themselves.
--
-- KEYS  held queue places claims, for each claim
-- ARGV  member wait, for each claim
--   wait  milliseconds that its place is kept; 0 for a claim without a place
-- Returns for each claim the milliseconds until the first lease or place may end; 0 if it should look now.

local function first_end(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) end

-- Returns the end of a lock in a single value, or nil if its release would not be published: the claim itself has to look.
local function single_watched(held, stored)
  local single = parse_single(held, stored)
  return single and single.mark == '!' and single_end(held) or nil
end

local function glance(held, queue, places, claims, member, wait)
  local stored = stored_single(held)
  local first
  if stored then
    first = single_watched(held, stored)
  else
    first = first_end(held)
  end
  if not first or first <= now then return 0 end
  if wait == 0 then return first - now end
  local stop = tonumber(redis.call('ZSCORE', places, member) or nil)
  -- Without a place, or called: the claim itself has to look.
  if not stop or stop <= now + CALL_GRACE then return 0 end
  if stop < now + wait * 2 / 3 then
    -- First a write that is allowed when memory has run out; then the others are, too.
    local last = now + wait
    extend(places, last + SLACK)
    redis.call('ZADD', places, 'XX', last, member)
    extend(queue, last + SLACK)
    extend(claims, last + SLACK)
  end
  return math.max(math.min(first, first_end(places)) - now, 0)
end

local answers = {}
for i = 1, #ARGV / 2 do
  local k = 4 * i
  -- An error of one claim must not block the rest of the batch. The claim looks itself and gets the error.
  local ours, wait = pcall(glance, KEYS[k - 3], KEYS[k - 2], KEYS[k - 1], KEYS[k], ARGV[2 * i - 1], tonumber(ARGV[2 * i]))
  answers[i] = ours and wait or 0
end
return answers
