-- The rest of a release: the claim is one of several that hold or wait, or is named with another share.
local held, own = KEYS[1], ARGV[1]
local queue, places = KEYS[2] or beside(held, 'queue'), KEYS[3] or beside(held, 'places')
local claims, fence = KEYS[4] or beside(held, 'claims'), KEYS[5] or beside(held, 'fence')
local channel = ARGV[2] == '' and '' or beside(held, ARGV[2])

local stored = stored_single(held)
if stored then
  local single, foreign = parse_single(held, stored)
  if not single then return foreign end
  if id_of(single.member) ~= id_of(own) then
    -- A newcomer overtook the waiters if the fence was lost with its mark. This claim may be one of them.
    if not ask('ZSCORE', places, own) then return refuse_as_replica(held) or 0 end
    forget({ own }, claims, queue, places)
    return 1
  end
  redis.call('DEL', held)
  if single.mark == '!' and channel ~= '' then redis.pcall(publish_on(channel), channel, '-') end
  return 1
end

local function stored_fence() return string.match(redis.call('GET', fence) or '', '^[^ +]*') end

-- Removes one holder from the stored load.
local function take_from_load(member)
  local left = redis.call('ZCARD', held)
  if left < MAX_READ then return end
  local text, state = redis.call('HGET', claims, LOAD), { count = 0, load = 0, shares = {}, was_written = true }
  local last = stored_fence()
  if text and parse_load(state, text, last, left + 1) then
    add_held(state, member, -1)
    write_load(state, claims, last)
  end
end

local called = {}

-- Removes a member. Returns whether its claim was there; an expired one was not.
local function take_out(member)
  local stop = redis.call('ZSCORE', held, member)
  if stop then
    redis.call('ZREM', held, member)
    redis.call('HDEL', claims, id_of(member))
    take_from_load(member)
    return tonumber(stop) > now
  end
  stop = redis.call('ZSCORE', places, member)
  if not stop then return nil end
  forget({ member }, claims, queue, places)
  -- A called waiter that leaves has answered: others stop watching it.
  if tonumber(stop) > now and tonumber(stop) <= now + CALL_GRACE then called[1] = '+' .. string.sub(member, 1, 8) end
  return tonumber(stop) > now
end

local there = take_out(own)
if there == nil then
  -- The first request fixes the share, so a claim that names another one now is found by its id.
  local share = string.match(redis.call('HGET', claims, id_of(own)) or '', '^[%d.]+:%d+(:%d+:%d+):')
  there = share and take_out(id_of(own) .. share)
end
if there == nil then return refuse_as_replica(held) or 0 end

if redis.call('EXISTS', places) == 1 then
  expire_places(queue, places, claims)
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  local weight, capacity = share_of(head or '')
  -- Each holder weighs at least one: if their number alone keeps the head waiting, they need not be read.
  if head and redis.call('ZCOUNT', held, '(' .. now, '+inf') + weight <= capacity then
    local state = read_held(held, claims, nil, stored_fence())
    state.called = called
    walk(state, queue, places, claims, nil)
  end
end
tell(channel, called, '-')
-- Only the claim that left has answered: capacity became free, and no claim was called.
if #called == 1 and string.sub(called[1], 1, 1) == '+' then tell(channel, {}, '-') end
return there and 1 or 0
