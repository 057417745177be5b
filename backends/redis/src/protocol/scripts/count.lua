-- How many claims hold and wait, for each of some resources. Changes nothing.
--
-- KEYS  held places, for each resource
-- Answers for each resource the number that hold and the number that wait.
local counts = {}
for i = 1, #KEYS do counts[i] = ask('ZCOUNT', KEYS[i], '(' .. now, '+inf') or 0 end
return counts
