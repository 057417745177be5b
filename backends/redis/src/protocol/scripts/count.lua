-- Counts the holders and waiters of some resources. Changes nothing.
--
-- KEYS  held places, for each resource
-- Returns for each resource the number of holders and that of waiters.
local refused = refuse_as_replica(KEYS[1])
if refused then return refused end
local counts = {}
for i = 1, #KEYS do
  local stored = stored_single(KEYS[i])
  if stored then
    counts[i] = parse_single(KEYS[i], stored) and 1 or 0
  else
    counts[i] = ask('ZCOUNT', KEYS[i], '(' .. now, '+inf') or 0
  end
end
return counts
