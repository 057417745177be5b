-- Keeps the lease of one owner.
--
-- KEYS  lock claims
-- ARGV  owner ttl tag
-- Answers 1 where it holds, 0 where it is gone.
local lock, claims = KEYS[1], KEYS[2]
local owner, ttl, tag = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local seen = read(lock)
local known = seen and seen.owners[owner]
if not known then return refuse_as_replica(lock) or 0 end
if known.kind == 'r' then
  if reads_for(tag, owner, known.holds) <= 0 then return refuse_as_replica(lock) or 0 end
  keep(tag .. ':' .. owner .. ':rwlock_timeout:1', ttl)
end
keep(lock, ttl)
keep(claims, ttl + SLACK)
return 1
