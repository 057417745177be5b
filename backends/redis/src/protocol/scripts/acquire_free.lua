-- One step towards holding a claim. This part grants what is free; `contend.lua` goes on with the rest.
--
-- KEYS  held line places claims fence
-- ARGV  member ttl wait note name channel floor epoch
--   wait     milliseconds that a place in the line is kept; 0: no place; -1: no place, and past those who wait
--   name     of the resource where its keys carry only a hash, else empty
--   channel  on which the claims that this calls are notified; empty where nothing is to be published
--   floor    key of the highest fence that was removed from the slot, read where the resource has no fence
--   epoch    in which the client believes that this server decides; 0 where nobody elects
-- Answers {1, seq, epoch} | {1, seq, epoch, 1}: the claim held it before | {2}: the line is full | {0, claims ahead, milliseconds until the first of them may end, milliseconds
-- until another look challenges one of them or calls more of the line, 0 where none will, and those ahead that wait, too}.
local held, line, places, claims, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local own, ttl, wait, note, name, channel = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
local floor, epoch = ARGV[7], tonumber(ARGV[8])
local id = id_of(own)

-- The replication id, another one after each restart and each promotion. Where it may not be asked it is empty, and no
-- record counts as one's own.
local function identity()
  local info = redis.pcall('INFO', 'replication')
  return type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or ''
end

-- The fence that follows `record`: its counter, its text, and what is stored.
local function next_fence(record)
  local micros = clock[1] * 1000000 + clock[2]
  if epoch == 0 then
    -- The counter follows the server's clock in microseconds and never falls behind itself. After a loss of data it goes
    -- on above what was granted before, as far as that clock allows.
    local text = string.format('%.0f', math.max(record.seq + 1, micros))
    return tonumber(text), text, text
  end
  -- The server's own continuation of this epoch is counted. Whatever else is there, for instance an old copy after a
  -- restart, may miss what was granted: counting then begins at the clock. `grant` of the model of epochs is the same.
  local by = identity()
  local last = record.epoch == epoch and record.seq or 0
  local seq = last + 1
  if record.epoch ~= epoch or record.by ~= by or by == '' then seq = 1 + math.max(micros, last) end
  local text = string.format('%.0f.%.0f', epoch, seq)
  return seq, text, text .. '@' .. by
end

-- What is written about this claim.
local function describe(seq, member) return seq .. ':' .. now .. string.sub(member, 33) .. ':' .. note end

-- Grants what nobody holds or waits for, as a single value.
local function grant_single(record)
  local seq, text, stored = next_fence(record)
  redis.call('SET', fence, name == '' and stored or stored .. ' ' .. name)
  redis.call('SET', held, own .. ' ' .. describe(text, own), 'PX', ttl)
  return { 1, seq, epoch }
end

read_clock()
local mute = refuse_as_mute(channel)
if mute then return mute end
local record, foreign = read_fence(fence, name)
if foreign then return foreign end
if record.text == '' then
  -- Its fence may have been removed. What was removed from the slot is the least that it begins above.
  -- The floor is not among KEYS, so that a resource with all its keys is served while its slot moves. A slot that moves
  -- refuses a script one of whose KEYS is missing, so without a fence this point is reached where the floor is, too.
  local last, unreadable = read_fence(floor, '')
  if unreadable then return unreadable end
  record.epoch, record.seq = last.epoch, last.seq
end
if epoch < record.epoch then
  local code = epoch == 0 and 'NEEDS_EPOCH' or 'STALE_EPOCH'
  return redis.error_reply(code .. ' ' .. fence .. ' was granted in epoch ' .. record.epoch .. ', this is epoch ' .. epoch)
end
local present = redis.call('EXISTS', held, places)
if present == 0 then return grant_single(record) end
