-- The first round: locks the resource if it is free or the claim's own. For a client that returns it takes the next fence,
-- too, unless another one was taken since its last.
--
-- KEYS  lock record mark unarmed
-- ARGV  id stamp ttl note name channel epoch last following
--   epoch, last, following  of the last fence that the client was granted its epoch, the whole, and the one that
--                           follows, or empty
-- Returns the server's state, and `yours` with the greatest fence and the claim's own fence or nothing,
-- or `theirs` with `granted` or nothing, the milliseconds left, and the number of subscribers.
local channel, own_epoch, own_seq = ARGV[6], tonumber(ARGV[7]), tonumber(string.match(ARGV[8], ' (%d+)$'))

local marked, of_run
stored, marked, of_run = parse_mark(mark, stored)
if not stored then return marked end
local epoch, seq = parse_record(record, name, taken)
if not epoch then return seq end
local left = found[1] and redis.call('PTTL', lock) or 0
local answer, problem = member_state(stored, of_run, KEYS[4])
if not answer then return problem end
if of_run ~= RUN and answer[2] == '' then
  -- The first request without a mark of this run stores its time. If that is refused, the next one does.
  local noted = redis.pcall('SET', KEYS[4], micros() .. ' ' .. RUN)
  if not noted.err then answer[2] = micros() end
end

if found[1] and found[1] ~= id then
  local told = redis.pcall('PUBSUB', 'NUMSUB', channel)
  answer[5], answer[6], answer[7] = 'theirs', found[2] and 'granted' or '', tostring(math.max(left, 0))
  answer[8] = type(told) == 'table' and told[2] and tostring(told[2]) or '0'
  return answer
end
local fence = found[2] or ''
if found[1] then
  -- The first half of a stamp is its client's; the second half is a counter. A request that a later one of the same
  -- client has overtaken sets no stamp: otherwise its late withdrawal would end the lock of the later one.
  -- They are compared as numbers, since the server's locale orders texts.
  local before = found[3]
  local count = function(text) return tonumber(string.sub(text, 17), 16) or 0 end
  local overtaken = before and string.sub(before, 1, 16) == string.sub(stamp, 1, 16) and count(stamp) < count(before)
  -- Extending is allowed when memory has run out, and so are later writes of the same script.
  redis.call('PEXPIRE', lock, math.max(left, ttl))
  if not overtaken then redis.call('HSET', lock, 'stamp', stamp) end
else
  -- A mark of another epoch, or of another run, would be of a server that may have forgotten a fence.
  local returns = own_seq and of_run == RUN and marked == own_epoch
  if returns and (epoch > own_epoch or (epoch == own_epoch and seq > own_seq)) then returns = false end
  redis.call('HSET', lock, 'id', id, 'stamp', stamp, 'since', millis(), 'note', note)
  redis.call('PEXPIRE', lock, ttl)
  if returns then
    epoch, seq, fence = own_epoch, own_seq + 1, following
    redis.call('HSET', lock, 'fence', fence)
    -- Nothing is published: a member does not know whether a majority takes it, too.
    redis.call('SET', record, name == '' and fence or fence .. ' ' .. name)
  end
  if name ~= '' then redis.call('HSET', lock, 'name', name) end
end
answer[5], answer[6], answer[7] = 'yours', whole(epoch) .. ' ' .. whole(seq), fence
return answer
