-- The second round: takes a fence if nothing has changed since the first round.
--
-- KEYS  lock record mark
-- ARGV  stamp run epoch seq name channel id ttl
--   ttl  milliseconds in hexadecimal digits, as waiters are told
-- Returns 1 if it took the fence.
local lock, record, mark = KEYS[1], KEYS[2], KEYS[3]
local stamp, run, epoch, seq = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local name, channel = ARGV[5], ARGV[6]

local stored, marked, of_run = read_mark(mark)
if not stored then return marked end
local last_epoch, last_seq = read_record(record, name)
if not last_epoch then return last_seq end
local found = redis.call('HMGET', lock, 'id', 'stamp')

-- A repeated request, of this claim or of another, has given the lock another stamp.
if found[2] ~= stamp or found[1] ~= ARGV[7] then return 0 end
-- A restarted server has lost the state that it reported.
if run ~= RUN or of_run ~= run then return 0 end
-- A writer of an ended epoch may not write any more.
if marked > epoch or last_epoch > epoch or (last_epoch == epoch and last_seq > seq) then return 0 end

local fence = whole(epoch) .. ' ' .. whole(seq)
redis.call('SET', record, name == '' and fence or fence .. ' ' .. name)
-- A server of a lower epoch has lost nothing, so it has taken nothing in this one yet.
if marked < epoch then redis.call('SET', mark, whole(epoch) .. ' ' .. run) end
redis.call('HSET', lock, 'fence', fence)
-- Waiters that are about to ask need not, until the lease may end. Only the start of an id is sent.
if channel ~= '' then redis.pcall('PUBLISH', channel, '+' .. string.sub(found[1], 1, 8) .. '=' .. ARGV[8]) end
return 1
