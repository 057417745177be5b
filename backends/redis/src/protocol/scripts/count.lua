-- Counts the holders and waiters of some resources. Changes nothing.
--
-- KEYS  held places, for each resource
-- Returns for each resource the number of holders and that of waiters.
local counts = {}
for i = 1, #KEYS do
  if is_string(KEYS[i]) then
    counts[i] = read_single(KEYS[i]) and 1 or 0
  else
    counts[i] = ask('ZCOUNT', KEYS[i], '(' .. now, '+inf') or 0
  end
end
return counts
