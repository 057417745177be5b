-- Marks the server if its state is still the one that was read.
--
-- KEYS  mark unarmed
-- ARGV  run, the mark that was read or nothing, epoch, the unarmed time that was read or nothing
-- Returns 1 if the mark is written, else 0.
local stored, epoch = read_mark(KEYS[1])
if not stored then return epoch end
if stored ~= ARGV[2] or RUN ~= ARGV[1] or (epoch or 0) >= tonumber(ARGV[3]) then return 0 end
-- A server that lost its data since then has another time or none.
if ARGV[4] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[4] .. ' ' .. ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[3] .. ' ' .. ARGV[1])
redis.call('DEL', KEYS[2])
return 1
