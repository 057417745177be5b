-- Extends granted claims, of any resources, to another ttl from now.
--
-- KEYS  held, for each claim
-- ARGV  member ttl claims, for each claim
--   claims  not among KEYS: a slot that moves refuses a script one of whose KEYS is missing, as this one is beside a single value
-- Answers for each claim 1 where its lease runs at least that long, 0 where it is gone.

-- Lets a key live to `stop` at least. What others of the same resource need of it stays.
local function keep(key, stop)
  redis.call('PEXPIREAT', key, math.max(stop + SLACK, now + redis.call('PTTL', key)))
end

-- The member and the end of its lease. A share is fixed when it is first asked for, so a claim that names another one
-- now is found by its id.
local function find(held, claims, member)
  local stop = ask('ZSCORE', held, member)
  if stop then return member, tonumber(stop) end
  local share = string.match(ask('HGET', claims, id_of(member)) or '', '^[%d.]+:%d+(:%d+:%d+):')
  if not share then return member, nil end
  member = id_of(member) .. share
  return member, tonumber(ask('ZSCORE', held, member) or nil)
end

local function renew_single(held, member, ttl)
  local own = read_single(held)
  if not own or id_of(own) ~= id_of(member) then return 0 end
  extend_single(held, ttl)
  return 1
end

local function renew(held, claims, member, ttl)
  if is_string(held) then return renew_single(held, member, ttl) end
  local stop
  member, stop = find(held, claims, member)
  if not stop or stop <= now then return 0 end
  local until_then = now + ttl
  if until_then > stop then
    -- Keeping a key alive is allowed where memory has run out, and so is what follows it in the same script: claims
    -- that are held stay held although the server can take no more.
    keep(held, until_then)
    redis.call('ZADD', held, 'XX', until_then, member)
    keep(claims, until_then)
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
