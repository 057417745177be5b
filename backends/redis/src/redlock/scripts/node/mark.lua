-- Marks the server, if it is still the one that was heard.
--
-- KEYS  mark unarmed
-- ARGV  run, the mark as it was heard or nothing, epoch, since when it was heard to be known that it is not armed or nothing
-- Answers 1 where the mark is written.
local stored, epoch = read_mark(KEYS[1])
if not stored then return epoch end
if stored ~= ARGV[2] or server() ~= ARGV[1] or (epoch or 0) >= tonumber(ARGV[3]) then return 0 end
-- One that has forgotten once more since then has another time, or none.
if ARGV[4] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[4] .. ' ' .. ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[3] .. ' ' .. ARGV[1])
redis.call('DEL', KEYS[2])
return 1
