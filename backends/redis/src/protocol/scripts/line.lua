-- The claims that hold a resource together and those that wait for it.

if not now then read_clock() end

-- The first six numbers are those of `crates/core/src/ledger.rs`; a test of `protocol/scripts.rs` compares them.
-- How long a claim whose turn has come may stay silent before the line passes it over.
local CALL_GRACE = 1000
-- How long a called claim may leave its call unanswered before others in the line are called as well.
local PROBE_AFTER = 250
-- How long a call is unanswered before its claim counts as silent.
local SILENT_AFTER = 400
-- How far from its head the line calls for each claim that is silent; all of it where as many are.
local PROBED_PER_SILENT = 32
-- How long those who wait for word leave a claim alone that keeps them from what is free.
local CHALLENGE_AFTER = 4000
-- The most claims that may wait on one resource.
local MAX_LINE = 10000
-- Keys outlive the last end that they hold by this, so that a later script still sees which end it was and tidies up.
local SLACK = 1000
-- A message names at most this many claims, and at most so many messages do; beyond, one calls everybody.
local MAX_CALLED = 64
local MAX_MESSAGES = 16
-- `unpack` must stay below the interpreter's stack.
local CHUNK = 1000
-- What stands in `claims` beside claims.
local LOAD = 'load'

-- Most members of a line have the same few shares, so each is read once.
local shares = {}
local function share_of(member)
  local text = string.sub(member, 33)
  local share = shares[text]
  if not share then
    local weight, capacity = string.match(text, '^:(%d+):(%d+)$')
    -- What cannot be read is taken for the greatest share: it keeps everybody out, and nobody in.
    share = { tonumber(weight) or 4294967295, tonumber(capacity) or 1 }
    shares[text] = share
  end
  return share[1], share[2]
end

-- Asks for what may be a key of another type, which is answered as if it were not there. In a batch it must not keep the
-- others from being served. Any other refusal, for instance for want of rights, is raised.
local function ask(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if string.find(answer.err, 'WRONGTYPE', 1, true) then return false end
  return redis.call(...)
end

-- Takes `members` out of the sorted sets `keys`, and what is written about them out of `claims`.
local function forget(members, claims, ...)
  for first = 1, #members, CHUNK do
    local last = math.min(first + CHUNK - 1, #members)
    for _, key in ipairs({...}) do redis.call('ZREM', key, unpack(members, first, last)) end
    local ids = {}
    for i = first, last do ids[#ids + 1] = id_of(members[i]) end
    redis.call('HDEL', claims, unpack(ids))
  end
end

-- Beyond this number of holders they are counted, not read.
local MAX_READ = 16

-- Adds `count` holders with the share of `member` to what is held.
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

-- The load that was written down, as shares with their numbers. It holds only if it was written at the last grant, and as many
-- are held as then: a client that grants without writing it down, as an older one does, makes it void.
local function parse_load(state, text, fence, count)
  local at, total, shares = string.match(text or '', '^([^ ]*) (%d+)(.*)$')
  if at ~= fence or tonumber(total) ~= count then return false end
  for share, number in string.gmatch(shares, ' (:%d+:%d+)=(%d+)') do
    add_held(state, string.rep('0', 32) .. share, tonumber(number))
  end
  return state.count == count
end

-- Writes down what is held, where it is more than can be read each time. What is refused (no memory) is read once more by the
-- next script.
local function write_load(state, claims, fence)
  if state.count <= MAX_READ then
    if state.was_written then redis.call('HDEL', claims, LOAD) end
    return
  end
  local text = { fence .. ' ' .. string.format('%.0f', state.count) }
  for share, number in pairs(state.shares) do text[#text + 1] = share .. '=' .. string.format('%.0f', number) end
  redis.pcall('HSET', claims, LOAD, table.concat(text, ' '))
end

-- What is held where it is a single value, as `read_held` answers it, with the value as `single`; or an error where it is not ours.
local function read_held_single(held, own)
  local member, written = read_single(held)
  if not member then return nil, written end
  local stop = single_end(held)
  local weight, capacity = share_of(member)
  local state = { count = 1, load = weight, capacity = capacity, earliest = stop, latest = stop, shares = {} }
  state.single = { member = member, written = written, stop = stop }
  if own and id_of(own) == id_of(member) then state.own, state.own_end = member, stop end
  return state
end

-- What is held now: how many claims, their load, the smallest capacity among them, their earliest and their latest end,
-- and the member of `own` with its end where that claim is among them. Leases that have ended are removed.
--
-- `fence` is the last one granted, as it is stored. With many holders the numbers of their shares are kept beside what is
-- written about the claims, so that none of them has to be read.
local function read_held(held, claims, own, fence)
  if is_string(held) then return read_held_single(held, own) end
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
    -- Also where nothing is granted, so that what was read once need not be read again.
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
local function expire_places(line, places, claims)
  local dead = redis.call('ZRANGEBYSCORE', places, '-inf', now, 'LIMIT', 0, MAX_LINE)
  if #dead > 0 then forget(dead, claims, line, places) end
end

-- Shortens the place of a waiting claim to the grace of a call, and has it told.
local function summon(state, places, member)
  redis.call('ZADD', places, 'XX', now + CALL_GRACE, member)
  state.called[#state.called + 1] = string.sub(member, 1, 8)
end

-- Walks the line from its head for as long as the claims met are admitted, and no further than `own`.
--
-- Answers 'own' where it was met, and so is admitted; 'end' where everybody in the line is admitted; else 'blocked'; and
-- with it the load and the smallest capacity of all that was passed, holders included, and the claim that blocks. A claim that was passed is called:
-- its place is shortened to the grace, and it is to be told. The load only grows on the way, so the first claim that
-- does not fit ends the walk: it costs the number of claims that are admitted, whatever the length of the line.
local function walk(state, line, places, claims, own)
  local load, capacity, first = state.load, state.capacity, 0
  state.called = state.called or {}
  while first < MAX_LINE do
    local met = redis.call('ZRANGE', line, first, first + 15)
    local ghosts = {}
    for _, member in ipairs(met) do
      local stop = tonumber(redis.call('ZSCORE', places, member) or nil)
      if not stop and member ~= own then
        -- Its end was evicted apart from its place: nobody would ever miss it.
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
    if #ghosts > 0 then forget(ghosts, claims, line) end
    if #met < 16 then return 'end', load, capacity end
    first = first + 16 - #ghosts
  end
  return 'blocked', load, capacity
end

-- The latest end of a place, zero where nobody waits.
local function last_place(places)
  return tonumber(redis.call('ZRANGE', places, -1, -1, 'WITHSCORES')[2]) or 0
end

-- Tells those who listen. Only the beginning of an id is told: enough to find whom it means, too little to end its claim.
-- A claim that answers its call is in `called` with `+` before it: nobody needs to look after it.
--
-- Messages come after the writes. A server that refuses one has done the rest, so the refusal changes no answer. A claim whose
-- client may not publish is refused before anything is written, see `refuse_as_mute`.
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
