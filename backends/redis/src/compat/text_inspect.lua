-- Looks at the lock.
--
-- KEYS  lock
-- Answers {0, holder, …}; a holder is {id, kind, milliseconds left or -1, 0, note}.
local value, foreign = ask('GET', KEYS[1])
if foreign then return foreign end
local refused = refuse_as_replica(KEYS[1])
if refused then return refused end
if not value then return { 0 } end
local note = 'held through another library'
if written_id(value) then note = string.sub(value, 34) end
return { 0, { shown_id(value), 'm', redis.call('PTTL', KEYS[1]), 0, note } }
