-- Returns the server's state. Changes nothing.
--
-- KEYS  mark unarmed
local stored, epoch, of_run = read_mark(KEYS[1])
if not stored then return epoch end
local answer, problem = member_state(stored, of_run, KEYS[2])
return answer or problem
