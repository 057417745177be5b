-- How many claims hold and wait, for each of some resources. Changes nothing.
--
-- KEYS  held places, for each resource
-- Answers for each resource the number that hold and the number that wait.
local counts = {}
for i = 1, #KEYS do
  if is_string(KEYS[i]) then
    counts[i] = read_single(KEYS[i]) and 1 or 0
  else
    counts[i] = ask('ZCOUNT', KEYS[i], '(' .. now, '+inf') or 0
  end
end
return counts
