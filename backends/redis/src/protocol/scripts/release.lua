-- The rest of a release: the claim is one of several that hold or wait.
local function stored_fence() return string.match(redis.call('GET', fence) or '', '^[^ ]*') end

-- Counts one holder less, where they are counted.
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

-- Whether the claim was there as this member. One whose time has passed is tidied away, and was not there.
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
  forget({ member }, claims, line, places)
  -- A waiter that was called and leaves has answered: nobody needs to look after it.
  if tonumber(stop) > now and tonumber(stop) <= now + CALL_GRACE then called[1] = '+' .. string.sub(member, 1, 8) end
  return tonumber(stop) > now
end

local there = take_out(own)
if there == nil then
  -- A share is fixed when it is first asked for, so a claim that names another one now is found by its id.
  local share = string.match(redis.call('HGET', claims, id_of(own)) or '', '^[%d.]+:%d+(:%d+:%d+):')
  there = share and take_out(id_of(own) .. share)
end
if there == nil then return refuse_as_replica(held) or 0 end

if redis.call('EXISTS', places) == 1 then
  expire_places(line, places, claims)
  local head = redis.call('ZRANGE', line, 0, 0)[1]
  local weight, capacity = share_of(head or '')
  -- Each holder weighs one at least: where that alone keeps the head waiting, the holders need not be read one by one.
  if head and redis.call('ZCOUNT', held, '(' .. now, '+inf') + weight <= capacity then
    local state = read_held(held, claims, nil, stored_fence())
    state.called = called
    walk(state, line, places, claims, nil)
  end
end
tell(channel, called, '-')
-- Only one that left has answered: something became free, and nobody was called for it.
if #called == 1 and string.sub(called[1], 1, 1) == '+' then tell(channel, {}, '-') end
return there and 1 or 0
