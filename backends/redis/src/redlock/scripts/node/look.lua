-- Reads one resource. Changes nothing.
--
-- KEYS  lock record
-- ARGV  name
-- Returns the greatest fence, and if there is a lock its id, fence, beginning, note, and the milliseconds left.
local epoch, seq = read_record(KEYS[2], ARGV[1])
if not epoch then return seq end
local answer = { whole(epoch) .. ' ' .. whole(seq) }
local found = redis.call('HMGET', KEYS[1], 'id', 'fence', 'since', 'note')
if found[1] then
  for i = 1, 4 do answer[i + 1] = found[i] or '' end
  answer[6] = tostring(math.max(redis.call('PTTL', KEYS[1]), 0))
end
return answer
