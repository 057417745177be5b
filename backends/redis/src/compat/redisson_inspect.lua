-- Looks at the lock.
--
-- KEYS  lock token claims
-- ARGV  tag
-- Answers {last fence, holder, …}; a holder is {id, kind, milliseconds left or -1, fence, note}.
local lock, token, claims, tag = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

local seen, foreign = read(lock)
if foreign then return foreign end
local refused = refuse_as_replica(lock)
if refused then return refused end
local answer = { tonumber(redis.call('GET', token) or 0) }
for owner, known in pairs(seen.owners) do
  local left = lasts(lock)
  if known.kind == 'r' then left = counts_for(lock, claims, tag, owner, known.holds) end
  if left > 0 then
    local seq, note = string.match(redis.call('HGET', claims, owner) or '', '^(%d+):(.*)$')
    note = note or 'held through Redisson by thread ' .. (string.match(owner, ':(%d+)$') or owner)
    answer[#answer + 1] = { shown_id(owner), known.kind, answered(left), tonumber(seq or 0), note }
  end
end
return answer
