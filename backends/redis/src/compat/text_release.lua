-- Ends the hold of one claim, or breaks that of another library whose id an onlooker was shown.
--
-- KEYS  lock, and the list on which waiters block, where the dialect has one
-- ARGV  id
-- Answers 1 where it was there, 0 where it was gone.
local value = ask('GET', KEYS[1])
if not value or shown_id(value) ~= ARGV[1] then return refuse_as_replica(KEYS[1]) or 0 end
if KEYS[2] then
  -- Whoever blocks on the list takes the one word; what nobody takes is gone in a second.
  redis.call('DEL', KEYS[2])
  redis.call('LPUSH', KEYS[2], 1)
  redis.call('PEXPIRE', KEYS[2], 1000)
end
redis.call('DEL', KEYS[1])
return 1
