-- One step towards holding a claim, continued: epochs, and fences that need more than a look at the clock. This part grants
-- what is free; `contend.lua` does the rest.
--
-- KEYS and ARGV are those of `acquire_free.lua`. Of the options:
--   watch    `!` if the client waits outside the queue, for a message about the release; else empty
--   wait     milliseconds for which a place in the queue is kept; 0: no place; -1: no place, and ahead of the waiters
--   scope    `wake` or `swake`, the end of the channel on which the claims that this calls are notified; empty to publish
--            nothing
--   floor    key of the highest fence that was removed from the slot, read if the resource has no fence
--   name     of the resource if its keys carry only a hash, else empty
-- Returns {1, seq, epoch} | {1, seq, epoch, 1}: the claim held it before | {2}: the queue is full |
-- {0, claims ahead, milliseconds until the first lease or place may end, milliseconds until another look challenges a
-- claim or calls more of the queue (0 if none will), waiters ahead}.
local held, fence = KEYS[1], KEYS[2]
local queue, places, claims = KEYS[3] or beside(held, 'queue'), KEYS[4] or beside(held, 'places'), KEYS[5] or beside(held, 'claims')
local own, note = string.match(ARGV[1], '^([^=]*)=:(.*)$')
local id, ttl, epoch = id_of(own), tonumber(ARGV[2]), tonumber(ARGV[4] or 0)
local watch, wait, scope, length, texts = string.match(ARGV[3], '^(!?)(%-?%d+) (%a*) (%d+) (.*)$')
local floor, name = string.sub(texts, 1, length), string.sub(texts, length + 1)
local channel = scope == '' and '' or beside(held, scope)
wait = tonumber(wait)

-- Returns the replication id, which changes with each restart and each promotion. It is empty if INFO is refused; then
-- no record counts as own.
local function identity()
  local info = redis.pcall('INFO', 'replication')
  return type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or ''
end

-- Returns the fence after `record`: its counter, its text, the stored text.
local function next_fence(record)
  local micros = clock[1] * 1000000 + clock[2]
  if epoch == 0 then
    -- The counter follows the server's clock in microseconds and never decreases. After a loss of data it
    -- continues above earlier grants, as far as that clock allows.
    local text = string.format('%.0f', math.max(record.seq + 1, micros))
    return tonumber(text), text, text
  end
  -- The counter continues only the server's own record of this epoch. Any other record, for instance an old copy after
  -- a restart, may miss grants: counting then begins at the clock. `grant` in `sim/src/epoch.rs` does the same.
  local by = identity()
  local last = record.epoch == epoch and record.seq or 0
  local seq = last + 1
  if record.epoch ~= epoch or record.by ~= by or by == '' then seq = 1 + math.max(micros, last) end
  local text = string.format('%.0f.%.0f', epoch, seq)
  return seq, text, text .. '@' .. by
end

-- Writes the last fence granted. `mark` is `+` if claims may wait.
local function write_fence(stored, mark)
  redis.call('SET', fence, stored .. (name ~= '' and ' ' .. name or epoch == 0 and mark or ''))
end

-- Returns the entry of this claim.
local function describe(seq, member) return seq .. ':' .. now .. string.sub(member, 33) .. ':' .. note end

-- Grants an unused resource as a single value.
local function grant_single(record)
  local seq, text, stored = next_fence(record)
  write_fence(stored, '')
  redis.call('SET', held, own .. '=' .. now .. ':' .. note, 'PX', ttl)
  return { 1, seq, epoch }
end

read_clock()
local mute = refuse_as_mute(channel)
if mute then return mute end
local record, foreign = read_fence(fence, name)
if foreign then return foreign end
if record.text == '' then
  -- Its fence may have been removed. It begins above the highest that was removed from the slot.
  -- The floor is not among KEYS, so that a resource with all its keys is served while its slot moves. A moving slot
  -- refuses a script if one of its KEYS is missing. So without a fence, this line is reached only if the floor is here.
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
