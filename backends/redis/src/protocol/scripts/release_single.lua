-- Ends one claim, granted or waiting, and calls the claims whose turn comes by it. This part ends a single value;
-- `release.lua` does the rest.
--
-- KEYS  held; and queue places claims fence, if a key may be elsewhere than the others
-- ARGV  member scope
--   scope  `wake` or `swake`, the end of the channel on which the claims that this calls are notified; empty to publish nothing
-- Returns 1 if the claim was there, 0 if it was gone.
--
-- A single value has no waiters in the queue; its mark shows whether other clients have subscribed. MGET does not object to
-- sorted sets.
do
  local own, stored = ARGV[1], redis.call('MGET', KEYS[1])[1]
  if stored and string.sub(stored, 1, #own) == own then
    local mark = string.sub(stored, #own + 1, #own + 1)
    if mark == '=' or mark == '!' then
      redis.call('DEL', KEYS[1])
      if mark == '!' and ARGV[2] ~= '' then
        -- As `publish_on` in the next part.
        local publish = redis.acl_check_cmd and ARGV[2] == 'swake' and 'SPUBLISH' or 'PUBLISH'
        redis.pcall(publish, string.sub(KEYS[1], 1, -5) .. ARGV[2], '-')
      end
      return 1
    end
  end
end
