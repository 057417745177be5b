-- The line of claims on one resource: what every deciding script begins with.
--
-- Ground rules: every key comes in through KEYS. Time is the server's own, in milliseconds. A script reads whatever may
-- hold a foreign type before it writes, and what it writes first is what may be refused (no memory), so that a refused
-- script has changed nothing.
--
-- A member is `<claim id, 32 hex digits>:<weight>:<capacity>`.
--   held    sorted set: member -> end of its lease
--   line    sorted set: member -> its place, rising with each arrival
--   places  sorted set: member -> when it leaves the line unless it is heard of again
--   claims  hash: claim id -> `<fence, 0 while it waits>:<since>:<weight>:<capacity>:<note>`
--   fence   string: the last fence granted, followed by the resource's name where the keys carry only its hash
--
-- A fence is written `<seq>`, and `<epoch>.<seq>` where the server is elected. The last one then has `@` and the
-- replication id under which it was granted behind it.

-- How long a claim whose turn has come may stay silent before the line passes it over.
local CALL_GRACE = 1000
-- How long a claim that waits may be silent while it alone keeps another from what is free.
local CHALLENGE_AFTER = 4000
-- The most claims that may wait on one resource.
local MAX_LINE = 10000
-- Keys outlive the last end that they hold by this, so that whoever looks then still sees whose end it was and tidies up.
local SLACK = 1000
-- A message names at most this many claims; beyond, it calls everybody.
local MAX_CALLED = 64
-- `unpack` must stay below the interpreter's stack.
local CHUNK = 1000

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function id_of(member) return string.sub(member, 1, 32) end

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

-- What is held now: how many claims, their load, the smallest capacity among them, their earliest and their latest end,
-- and the member of `id` with its end where that claim is among them. Leases that have ended are removed.
local function read_held(held, claims, id)
  local found = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
  local state = { count = 0, load = 0, capacity = 4294967295, latest = 0 }
  local dead = {}
  -- Ends rise: whoever follows one that lives, lives.
  for i = 1, #found, 2 do
    local member = found[i]
    if not state.earliest then
      local stop = tonumber(found[i + 1])
      if stop > now then state.earliest = stop else dead[#dead + 1] = member end
    end
    if state.earliest then
      local weight, capacity = share_of(member)
      state.count, state.load = state.count + 1, state.load + weight
      if capacity < state.capacity then state.capacity = capacity end
      if id_of(member) == id then state.own, state.own_end = member, tonumber(found[i + 1]) end
    end
  end
  if state.earliest then state.latest = tonumber(found[#found]) end
  if #dead > 0 then forget(dead, claims, held) end
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
-- with it the load and the smallest capacity of all that was passed, holders included, and who it was that blocks. Whoever was passed is called:
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
local function tell(channel, called, otherwise)
  local message = otherwise
  if #called > MAX_CALLED then
    message = '*'
  elseif #called > 0 then
    message = table.concat(called, ' ')
  end
  if channel == '' or not message then return end
  -- A channel that ends so is of its slot, and only the servers of that slot carry it.
  redis.call(string.sub(channel, -7) == '}:swake' and 'SPUBLISH' or 'PUBLISH', channel, message)
end

-- The fence at the beginning of a text: its epoch, 0 where there is none, its counter, and what follows.
local function parse_fence(text)
  local epoch, seq, rest = string.match(text, '^(%d+)%.(%d+)(.*)$')
  if not epoch then
    epoch = '0'
    seq, rest = string.match(text, '^(%d+)(.*)$')
  end
  return tonumber(epoch), tonumber(seq), rest
end

-- The fence that was stored and by whom, and an error where it is not ours or belongs to a resource of another name.
local function read_fence(fence, name)
  local stored = redis.call('GET', fence)
  if not stored then return { epoch = 0, seq = 0, by = '' } end
  local epoch, seq, rest = parse_fence(stored)
  local by, whose = string.match(rest or '', '^@?(%x*) ?(.*)$')
  if not seq then return nil, redis.error_reply('FOREIGN no fence of leasehold is stored in ' .. fence) end
  if whose ~= name then return nil, redis.error_reply('FOREIGN ' .. fence .. ' belongs to a resource of another name') end
  return { epoch = epoch, seq = seq, by = by }
end

-- Lets a replica refuse, which would otherwise answer from a copy that lags behind: whoever says that something is gone
-- must be the one who decides. What is changed by it is nothing. Any other refusal is of no interest here.
local function refuse_as_replica(key)
  local answer = redis.pcall('ZREM', key, '')
  return type(answer) == 'table' and answer.err and string.find(answer.err, 'READONLY', 1, true) and answer or nil
end
