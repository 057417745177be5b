-- What the server remembers of itself. Changes nothing.
--
-- KEYS  mark
local stored, problem = read_mark(KEYS[1])
if not stored then return problem end
return memory(stored)
