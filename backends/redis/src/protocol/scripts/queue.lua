-- The claims that hold a resource together and those that wait for it.

if not now then read_clock() end

-- The first six numbers are those of `crates/core/src/ledger.rs`; a test of `protocol/scripts.rs` compares them.
-- Milliseconds that a claim whose turn has come may be silent until it is passed over.
local CALL_GRACE = 1000
-- Milliseconds that a call may be unanswered until other waiters are called as well.
local PROBE_AFTER = 250
-- Milliseconds after which an unanswered claim counts as silent.
local SILENT_AFTER = 400
-- How far from the head claims are called for each silent one; all, if this many are silent.
local PROBED_PER_SILENT = 32
-- Milliseconds for which waiters tolerate a claim that keeps them from free capacity.
local CHALLENGE_AFTER = 4000
-- The most claims that may wait on one resource.
local MAX_QUEUE = 10000
-- Milliseconds by which keys outlive their last end, so that a later script still sees that end and cleans up.
local SLACK = 1000
-- The most claims in a message, and the most such messages; for more claims, one message notifies all.
local MAX_CALLED = 64
local MAX_MESSAGES = 16
-- `unpack` must stay below the interpreter's stack.
local CHUNK = 1000
-- The field of `claims` with the load.
local LOAD = 'load'

-- Most members have one of a few shares, so each is parsed once.
local shares = {}
local function share_of(member)
  local text = string.sub(member, 33)
  local share = shares[text]
  if not share then
    local weight, capacity = string.match(text, '^:(%d+):(%d+)$')
    -- An unreadable share counts as the greatest: it never fits, and no claim fits beside it.
    share = { tonumber(weight) or 4294967295, tonumber(capacity) or 1 }
    shares[text] = share
  end
  return share[1], share[2]
end

-- Runs a command on a key that may be of another type, and then returns false, as if it did not exist: in a batch, it
-- must not block the others. Any other refusal, for instance for lack of rights, is raised.
local function ask(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if string.find(answer.err, 'WRONGTYPE', 1, true) then return false end
  return redis.call(...)
end

-- Removes `members` from the sorted sets `keys`, and their entries from `claims`.
local function forget(members, claims, ...)
  for first = 1, #members, CHUNK do
    local last = math.min(first + CHUNK - 1, #members)
    for _, key in ipairs({...}) do redis.call('ZREM', key, unpack(members, first, last)) end
    local ids = {}
    for i = first, last do ids[#ids + 1] = id_of(members[i]) end
    redis.call('HDEL', claims, unpack(ids))
  end
end

-- More holders than this are counted, not read.
local MAX_READ = 16

-- Adds `count` holders with the share of `member` to the load.
local function add_held(state, member, count)
  local share = string.sub(member, 33)
  local weight = share_of(member)
  local left = (state.shares[share] or 0) + count
  state.shares[share] = left > 0 and left or nil
  state.count, state.load = state.count + count, state.load + weight * count
end

local function read_shares(state, found)
  for i = 1, #found do add_held(state, found[i], 1) end
end

-- Reads the stored load: shares with their numbers. Returns whether it is valid: written for the
-- last fence and the current number of holders. A client that grants without storing it, as an older one does, makes it invalid.
local function parse_load(state, text, fence, count)
  local at, total, shares = string.match(text or '', '^([^ ]*) (%d+)(.*)$')
  if at ~= fence or tonumber(total) ~= count then return false end
  for share, number in string.gmatch(shares, ' (:%d+:%d+)=(%d+)') do
    add_held(state, string.rep('0', 32) .. share, tonumber(number))
  end
  return state.count == count
end

-- Stores the load if there are too many holders to read each time. If that is refused (no memory), the next script reads
-- them again.
local function write_load(state, claims, fence)
  if state.count <= MAX_READ then
    if state.was_written then redis.call('HDEL', claims, LOAD) end
    return
  end
  local text = { fence .. ' ' .. string.format('%.0f', state.count) }
  for share, number in pairs(state.shares) do text[#text + 1] = share .. '=' .. string.format('%.0f', number) end
  redis.pcall('HSET', claims, LOAD, table.concat(text, ' '))
end

-- Does what `read_held` does for a single value, and adds it as `single`. Returns an error if it is not ours.
local function read_held_single(held, stored, own)
  local single, foreign = parse_single(held, stored)
  if not single then return nil, foreign end
  single.stop = single_end(held)
  local weight, capacity = share_of(single.member)
  local state = { count = 1, load = weight, capacity = capacity, earliest = single.stop, latest = single.stop, shares = {} }
  state.single = single
  if own and id_of(own) == id_of(single.member) then state.own, state.own_end = single.member, single.stop end
  return state
end

-- Returns what is held: the number of claims, their load, their smallest capacity, their earliest and latest end,
-- and the member of `own` with its end if it holds. Removes leases that have ended.
--
-- `fence` is the last one granted, as it is stored. With many holders, `load` in `claims` counts their shares, so
-- that no holder has to be read.
local function read_held(held, claims, own, fence)
  local stored = stored_single(held)
  if stored then return read_held_single(held, stored, own) end
  local found = redis.call('ZRANGE', held, 0, MAX_READ, 'WITHSCORES')
  local state = { count = 0, load = 0, capacity = 4294967295, latest = 0, shares = {} }
  local dead, members = {}, {}
  if found[2] and tonumber(found[2]) <= now then
    dead = redis.call('ZRANGEBYSCORE', held, '-inf', now)
    forget(dead, claims, held)
  end
  if #found <= 2 * MAX_READ then
    for i = 2 * #dead + 1, #found, 2 do
      members[#members + 1] = found[i]
      state.earliest = state.earliest or tonumber(found[i + 1])
      state.latest = tonumber(found[i + 1])
    end
    read_shares(state, members)
  else
    local count = redis.call('ZCARD', held)
    local text = redis.call('HGET', claims, LOAD)
    state.was_written = text and true
    local is_known = parse_load(state, text, fence, count + #dead)
    if is_known then
      for _, member in ipairs(dead) do add_held(state, member, -1) end
    else
      state.count, state.load, state.shares = 0, 0, {}
      read_shares(state, redis.call('ZRANGE', held, 0, -1))
    end
    if count > 0 then
      state.earliest = tonumber(redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2])
      state.latest = tonumber(redis.call('ZRANGE', held, -1, -1, 'WITHSCORES')[2])
    end
    -- Even if nothing is granted, so that the holders need not be read again.
    if #dead > 0 or not is_known then write_load(state, claims, fence) end
  end
  for share in pairs(state.shares) do
    local _, capacity = share_of(string.rep('0', 32) .. share)
    if capacity < state.capacity then state.capacity = capacity end
  end
  if own then
    for _, member in ipairs(members) do
      if id_of(member) == id_of(own) then state.own = member end
    end
    if #members == 0 and state.count > 0 then
      local share = redis.call('ZSCORE', held, own) and string.sub(own, 33)
        or string.match(redis.call('HGET', claims, id_of(own)) or '', '^[%d.]+:%d+(:%d+:%d+):')
      if share and redis.call('ZSCORE', held, id_of(own) .. share) then state.own = id_of(own) .. share end
    end
    if state.own then state.own_end = tonumber(redis.call('ZSCORE', held, state.own)) end
  end
  return state
end

-- Removes the waiting claims whose time has passed.
local function expire_places(queue, places, claims)
  local dead = redis.call('ZRANGEBYSCORE', places, '-inf', now, 'LIMIT', 0, MAX_QUEUE)
  if #dead > 0 then forget(dead, claims, queue, places) end
end

-- Shortens the place of a waiting claim to CALL_GRACE and adds it to `called`.
local function summon(state, places, member)
  redis.call('ZADD', places, 'XX', now + CALL_GRACE, member)
  state.called[#state.called + 1] = string.sub(member, 1, 8)
end

-- Walks the queue from its head while the claims are admitted, and no further than `own`.
--
-- Returns 'own' if it is met and admitted; 'end' if all of the queue is admitted; else 'blocked'. Also returns the load and
-- the smallest capacity of all passed claims, holders included, and the claim that blocks. It calls each claim it passes:
-- its place is shortened to CALL_GRACE, and it is notified. The load only grows on the way, so the first claim that does
-- not fit ends the walk. The cost is the number of admitted claims, not the queue's length.
local function walk(state, queue, places, claims, own)
  local load, capacity, first = state.load, state.capacity, 0
  state.called = state.called or {}
  while first < MAX_QUEUE do
    local met = redis.call('ZRANGE', queue, first, first + 15)
    local ghosts = {}
    for _, member in ipairs(met) do
      local stop = tonumber(redis.call('ZSCORE', places, member) or nil)
      if not stop and member ~= own then
        -- `places` was evicted without `queue`: this claim would never expire.
        ghosts[#ghosts + 1] = member
      else
        local weight, bound = share_of(member)
        local least = math.min(capacity, bound)
        if load + weight > least then return 'blocked', load, capacity, member end
        if member == own then return 'own', load, capacity end
        load, capacity = load + weight, least
        if stop > now + CALL_GRACE then
          stop = now + CALL_GRACE
          summon(state, places, member)
        end
        state.earliest = math.min(state.earliest or stop, stop)
      end
    end
    if #ghosts > 0 then forget(ghosts, claims, queue) end
    if #met < 16 then return 'end', load, capacity end
    first = first + 16 - #ghosts
  end
  return 'blocked', load, capacity
end

-- Returns the latest end of a place, 0 if none.
local function last_place(places)
  return tonumber(redis.call('ZRANGE', places, -1, -1, 'WITHSCORES')[2]) or 0
end

-- Notifies the subscribers. A message has only the start of an id: enough to identify a claim, too little to end it.
-- `+` before an id in `called` marks a claim that answers its call: others stop watching it. `=` and its lease in
-- milliseconds, in hexadecimal digits, follow if it is granted.
--
-- Messages follow the writes. If a server refuses one, the writes are done, so the result does not change. An acquisition
-- whose client may not publish is refused before any write, see `refuse_as_mute`.
local function tell(channel, called, otherwise)
  if channel == '' then return end
  local publish = publish_on(channel)
  if #called > MAX_CALLED * MAX_MESSAGES then
    redis.pcall(publish, channel, '*')
  elseif #called > 0 then
    for first = 1, #called, MAX_CALLED do
      redis.pcall(publish, channel, table.concat(called, ' ', first, math.min(first + MAX_CALLED - 1, #called)))
    end
  elseif otherwise then
    redis.pcall(publish, channel, otherwise)
  end
end
