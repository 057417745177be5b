-- The functions that scripts of a quorum member share.
--
-- Rules: every key comes from KEYS. A script reads keys that may hold a foreign type before it writes. Its first write is
-- one that may be refused (no memory) or one that never is, so a refused script has changed nothing.
--
--   lock    hash, ends with the lease: id, stamp, since, note; fence `<epoch> <seq>` once it was taken, or a renewal or
--           `seed.lua` wrote it; name if the keys carry only its hash
--   record  string: `<epoch> <seq>`, the greatest fence taken, then the name if the keys carry only its hash
--   mark    string, one for all resources: `<epoch> <run id>`
--   unarmed string, one for all resources: `<microseconds> <run id>`, when the server was first seen without its run's mark

-- Returns seconds and microseconds of the server's clock, of one moment for the whole script.
local moment
local function clock()
  moment = moment or redis.call('TIME')
  return moment[1], moment[2]
end

local function micros() return string.format('%s%06d', clock()) end
local function millis()
  local seconds, rest = clock()
  return seconds .. string.format('%03d', math.floor(rest / 1000))
end

local function foreign(key) return redis.error_reply('FOREIGN ' .. key .. ' is not of leasehold') end

-- Returns the stored mark, its epoch and its run; or an error.
local function parse_mark(key, stored)
  if not stored then return '' end
  local epoch, run = string.match(stored, '^(%d+) (%x+)$')
  if not epoch then return nil, foreign(key) end
  return stored, tonumber(epoch), run
end
local function read_mark(key) return parse_mark(key, redis.call('GET', key)) end

-- Returns epoch and number of the record; or an error.
local function parse_record(key, name, stored)
  if not stored then return 0, 0 end
  local epoch, seq, whose = string.match(stored, '^(%d+) (%d+) ?(.*)$')
  if not epoch then return nil, foreign(key) end
  if whose ~= name then return nil, redis.error_reply('FOREIGN ' .. key .. ' belongs to a resource of another name') end
  return tonumber(epoch), tonumber(seq)
end
local function read_record(key, name) return parse_record(key, name, redis.call('GET', key)) end

local function whole(number) return string.format('%.0f', number) end

-- Returns the server's state as four texts: its run, since when it is known to be unarmed or nothing, its mark, and its
-- clock; or an error.
local function member_state(mark, of_run, unarmed)
  local since = ''
  if of_run ~= RUN then
    local stored = redis.call('GET', unarmed)
    local whose
    since, whose = string.match(stored or '', '^(%d+) (%x+)$')
    if stored and not since then return nil, foreign(unarmed) end
    -- A time in the future shows that the clock was set back: `ask.lua` replaces it.
    if whose ~= RUN or tonumber(since) > tonumber(micros()) then since = '' end
  end
  return { RUN, since, mark, micros() }
end
