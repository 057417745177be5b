-- Ends the hold of one owner, however often it holds, and tells those who wait when nobody holds any more.
--
-- KEYS  lock claims
-- ARGV  owner id tag verb channel message channel message
--   id    by which an onlooker may have known the owner
--   verb  PUBLISH, or SPUBLISH for a message in both forms, where the server has both: from Redis 7.0 on
-- Answers 1 where it was there, 0 where it was gone.
local lock, claims = KEYS[1], KEYS[2]
local owner, id, tag = ARGV[1], ARGV[2], ARGV[3]

local seen = read(lock)
if not seen then return refuse_as_replica(lock) or 0 end
tidy(lock, claims, tag, seen, owner)
local known = seen.owners[owner]
if not known then
  for other, found in pairs(seen.owners) do
    if shown_id(other) == id then owner, known = other, found end
  end
end
if not known then return refuse_as_replica(lock) or 0 end

local longest = -2
for other, found in pairs(seen.owners) do
  if other ~= owner then longest = math.max(longest, reads_for(tag, other, found.holds)) end
end
-- Readers that have no key any more end with the last one that has, as when one of Redisson's ends. Otherwise a reader
-- that died would stay for as long as others come and prolong the hash.
if seen.mode == 'read' and longest <= 0 and reads_for(tag, owner, known.holds) > 0 then seen.count = 1 end
if seen.count > 1 then redis.call('HDEL', lock, owner, owner .. ':write') else redis.call('DEL', lock) end
-- It has ended, whether or not this user may do the rest.
local claim = redis.pcall('HDEL', claims, owner)
for n = 1, known.holds do redis.pcall('DEL', tag .. ':' .. owner .. ':rwlock_timeout:' .. n) end
if seen.count > 1 then
  -- Readers remain. The hash lasts as long as the last of them.
  if longest > 0 and longest < FOREVER then redis.pcall('PEXPIRE', lock, longest) end
  return 1
end
-- Unless it is another program's by now.
if type(claim) == 'number' then redis.pcall('DEL', claims) end
local of_slot = ARGV[4] == 'SPUBLISH' and redis.acl_check_cmd
for i = 5, #ARGV, 2 do
  if of_slot then redis.pcall('SPUBLISH', ARGV[i], ARGV[i + 1]) end
  redis.pcall('PUBLISH', ARGV[i], ARGV[i + 1])
end
return 1
