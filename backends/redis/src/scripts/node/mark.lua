-- Marks the server, if it is still the one that was heard.
--
-- KEYS  mark
-- ARGV  run, the mark as it was heard or nothing, epoch
-- Answers 1 where the mark is written.
local stored, epoch = read_mark(KEYS[1])
if not stored then return epoch end
if stored ~= ARGV[2] or server() ~= ARGV[1] or (epoch or 0) >= tonumber(ARGV[3]) then return 0 end
redis.call('SET', KEYS[1], ARGV[3] .. ' ' .. ARGV[1])
return 1
