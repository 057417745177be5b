-- The first round: locks the resource if it is free or the claim's own.
--
-- KEYS  lock record mark unarmed
-- ARGV  id stamp ttl note name channel
-- Returns the server's state, and `yours` with the greatest fence and the claim's own fence or nothing,
-- or `theirs` with `granted` or nothing, the milliseconds left, and the number of subscribers.
local lock, record, mark = KEYS[1], KEYS[2], KEYS[3]
local id, stamp, ttl, note, name, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]

local stored, marked, of_run = read_mark(mark)
if not stored then return marked end
local epoch, seq = read_record(record, name)
if not epoch then return seq end
local found = redis.call('HMGET', lock, 'id', 'fence', 'stamp')
local left = redis.call('PTTL', lock)
local answer, problem = memory(stored, of_run, KEYS[4])
if not answer then return problem end
if of_run ~= answer[1] and answer[2] == '' then
  -- The first request without a mark of this run stores its time. If that is refused, the next one does.
  local noted = redis.pcall('SET', KEYS[4], micros .. ' ' .. answer[1])
  if not noted.err then answer[2] = micros end
end

if found[1] and found[1] ~= id then
  local told = redis.pcall('PUBSUB', 'NUMSUB', channel)
  answer[5], answer[6], answer[7] = 'theirs', found[2] and 'granted' or '', tostring(math.max(left, 0))
  answer[8] = type(told) == 'table' and told[2] and tostring(told[2]) or '0'
  return answer
end
if found[1] then
  -- The first half of a stamp is its client's; the second half is a counter. A request that a later one of the same
  -- client has overtaken sets no stamp: otherwise its late withdrawal would end the lock of the later one.
  -- They are compared as numbers, since the server's locale orders texts.
  local last = found[3]
  local count = function(text) return tonumber(string.sub(text, 17), 16) or 0 end
  local overtaken = last and string.sub(last, 1, 16) == string.sub(stamp, 1, 16) and count(stamp) < count(last)
  -- Extending is allowed when memory has run out, and so are later writes of the same script.
  redis.call('PEXPIRE', lock, math.max(left, ttl))
  if not overtaken then redis.call('HSET', lock, 'stamp', stamp) end
else
  local since = clock[1] .. string.format('%03d', math.floor(clock[2] / 1000))
  redis.call('HSET', lock, 'id', id, 'stamp', stamp, 'since', since, 'note', note)
  if name ~= '' then redis.call('HSET', lock, 'name', name) end
  redis.call('PEXPIRE', lock, ttl)
end
answer[5], answer[6], answer[7] = 'yours', whole(epoch) .. ' ' .. whole(seq), found[2] or ''
return answer
