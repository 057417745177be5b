-- Returns id and name for each lock; the name only if the keys carry only its hash. Changes nothing.
--
-- KEYS  locks
local answers = {}
for i = 1, #KEYS do
  local found = redis.pcall('HMGET', KEYS[i], 'id', 'name')
  local ours = not found.err
  answers[2 * i - 1], answers[2 * i] = ours and found[1] or '', ours and found[2] or ''
end
return answers
