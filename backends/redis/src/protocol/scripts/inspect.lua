-- Returns the holders and the queue of one resource. Changes at most the mark of a single value.
--
-- KEYS  held queue places claims fence
-- ARGV  name watch
--   name   of the resource if its keys carry only a hash, else empty
--   watch  `!` if the client waits for a change, to get a message about the release; else empty
-- Returns {now, epoch and counter of the last fence, version, holders, waiting}; each claim as its member, end, and entry.
local held, queue, places, claims, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local record, foreign = read_fence(fence, ARGV[1])
if foreign then return foreign end
local refused = refuse_as_replica(held)
if refused then return refused end

local function describe(members, ends)
  local written = {}
  for first = 1, #members, CHUNK do
    local ids = {}
    for i = first, math.min(first + CHUNK - 1, #members) do ids[#ids + 1] = id_of(members[i]) end
    for _, text in ipairs(redis.call('HMGET', claims, unpack(ids))) do written[#written + 1] = text or '' end
  end
  local flat = {}
  for i, member in ipairs(members) do
    flat[#flat + 1], flat[#flat + 2], flat[#flat + 3] = member, ends[member], written[i]
  end
  return flat
end

local function living(key)
  local members, ends = {}, {}
  local found = redis.call('ZRANGEBYSCORE', key, '(' .. now, '+inf', 'WITHSCORES')
  for i = 1, #found, 2 do
    members[#members + 1] = found[i]
    ends[found[i]] = tonumber(found[i + 1])
  end
  return members, ends
end

local holders, described
local stored = stored_single(held)
if stored then
  local single, unreadable = parse_single(held, stored)
  if not single then return unreadable end
  local member = single.member
  holders, described = { member }, { member, single_end(held), entry_of(single, record) }
  if ARGV[2] ~= '' then mark_single(held, single) end
else
  local lease_ends
  holders, lease_ends = living(held)
  described = describe(holders, lease_ends)
end
local _, place_ends = living(places)
local waiting = {}
for _, member in ipairs(redis.call('ZRANGE', queue, 0, MAX_QUEUE - 1)) do
  if place_ends[member] then waiting[#waiting + 1] = member end
end

-- Each grant advances the fence; any other change alters the holders, their notes or the queue. Another client that
-- continues a claim replaces its note. Renewals keep the version.
local sorted = {}
for i, member in ipairs(holders) do
  local note = string.match(described[3 * i], '^[%d.]+:%d+:%d+:%d+:(.*)$') or ''
  sorted[i] = member .. ' ' .. #note .. ' ' .. note
end
table.sort(sorted)
local version = redis.sha1hex(string.format('%.0f.%.0f', record.epoch, record.seq) .. '|' .. table.concat(sorted, ' ') .. '|' .. table.concat(waiting, ' '))
return { now, record.epoch, record.seq, version, described, describe(waiting, place_ends) }
