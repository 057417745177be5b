-- How many claims hold and wait, for each of some resources. Changes nothing.
--
-- KEYS  held places, for each resource
-- Answers for each resource the number that hold and the number that wait.
local counts = {}
for i = 1, #KEYS do
  -- What is not ours has no claims.
  local living = redis.pcall('ZCOUNT', KEYS[i], '(' .. now, '+inf')
  counts[i] = type(living) == 'number' and living or 0
end
return counts
