-- The first round of a client that returns, where nothing has changed since its last grant: it takes the lock and the
-- next fence. No function is created before, and no number is read from a text. Anything else is left to the part below.
--
-- Keys and arguments are those of `ask.lua`. Returns its answer as one text, with a line for each part. A script for
-- another run of the server does not get here.
local lock, record, mark = KEYS[1], KEYS[2], KEYS[3]
local id, stamp, ttl, note, name = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local last, following = ARGV[8], ARGV[9]

local stored, taken = redis.call('GET', mark), redis.call('GET', record)
local found = redis.call('HMGET', lock, 'id', 'fence', 'stamp')
if last ~= '' and name == '' and not found[1] and taken == last and stored == ARGV[7] .. ' ' .. RUN then
  local now = redis.call('TIME')
  local micros = string.format('%s%06d', now[1], now[2])
  -- The milliseconds.
  local since = string.sub(micros, 1, -4)
  redis.call('HSET', lock, 'id', id, 'stamp', stamp, 'since', since, 'note', note, 'fence', following)
  redis.call('PEXPIRE', lock, ttl)
  -- Nothing is published: a member does not know whether a majority takes it, too.
  redis.call('SET', record, following)
  -- One text, since the server and the client take longer for an array. No part of it has a line break.
  return RUN .. '\n\n' .. stored .. '\n' .. micros .. '\nyours\n' .. following .. '\n' .. following
end

