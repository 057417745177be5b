-- Extends granted claims, of any resources, to another ttl from now.
--
-- KEYS  held, for each claim
-- ARGV  member ttl claims, for each claim
--   claims  not in KEYS: a moving slot refuses a script if one of its KEYS is missing, as this is beside a single value
-- Returns for each claim 1 if its lease runs at least that long, 0 if it is gone.

-- Returns the member and the end of its lease. The first request fixes the share, so a claim that names another one
-- now is found by its id.
local function find(held, claims, member)
  local stop = ask('ZSCORE', held, member)
  if stop then return member, tonumber(stop) end
  local share = string.match(ask('HGET', claims, id_of(member)) or '', '^[%d.]+:%d+(:%d+:%d+):')
  if not share then return member, nil end
  member = id_of(member) .. share
  return member, tonumber(ask('ZSCORE', held, member) or nil)
end

local function renew_single(held, stored, member, ttl)
  local single = parse_single(held, stored)
  if not single or id_of(single.member) ~= id_of(member) then return 0 end
  extend(held, now + ttl)
  return 1
end

local function renew(held, claims, member, ttl)
  local stored = stored_single(held)
  if stored then return renew_single(held, stored, member, ttl) end
  local stop
  member, stop = find(held, claims, member)
  if not stop or stop <= now then return 0 end
  local until_then = now + ttl
  if until_then > stop then
    -- Keeping a key alive is allowed when memory has run out, and so are later writes of the same script: held
    -- claims stay held although the server has no memory left.
    extend(held, until_then + SLACK)
    redis.call('ZADD', held, 'XX', until_then, member)
    extend(claims, until_then + SLACK)
  end
  return 1
end

local answers, someone_is_gone = {}, false
for i = 1, #KEYS do
  answers[i] = renew(KEYS[i], ARGV[3 * i], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]))
  someone_is_gone = someone_is_gone or answers[i] == 0
end
if someone_is_gone then
  local refusal = refuse_as_replica(KEYS[1])
  if refusal then return refusal end
end
return answers
