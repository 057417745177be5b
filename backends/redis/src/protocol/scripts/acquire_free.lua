-- One step towards holding a claim. This part grants a free lock as a single value; `contend.lua` does the rest.
--
-- KEYS  held fence; and queue places claims, if a key may be elsewhere than the others
-- ARGV  value ttl options epoch
--   value    what a single value of this claim is: `<member>=:<note>`
--   options  `<watch><wait> <scope> <length of floor> <floor><name>`, see `contend.lua`
--   epoch    in which the client believes that this server decides; 0 without elections, and absent if moreover the
--            right to publish need not be checked again
-- Returns a fence, if it is without epoch and the claim did not hold it before; otherwise what `contend.lua` returns.
if ARGV[4] == '0' then
  local scope = string.match(ARGV[3], '^%S+ (%a+)')
  local channel = scope and string.sub(KEYS[1], 1, -5) .. scope
  local publish = scope == 'swake' and 'SPUBLISH' or 'PUBLISH'
  if channel and redis.acl_check_cmd and not redis.acl_check_cmd(publish, channel, '') then
    return redis.error_reply('NOPERM this user may not ' .. publish .. ' to the channel ' .. channel)
  end
end
if not ARGV[4] or ARGV[4] == '0' then
  local time = redis.call('TIME')
  -- If it is refused (no memory, or a replica), what follows decides whether something else is to be done.
  local done = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
  if done and done.ok then
    -- The counter follows the server's clock in microseconds: digits of the same number, so they compare as texts.
    local fence = time[1] .. (#time[2] == 6 and time[2] or string.sub('000000', #time[2] + 1) .. time[2])
    local last = redis.pcall('SET', KEYS[2], fence, 'GET')
    local is_new = not last
    if is_new then
      -- Its fence may have been removed: it begins above the highest that was removed from the slot.
      local length, rest = string.match(ARGV[3], '^%S+ %a* (%d+) (.*)$')
      last = redis.pcall('GET', string.sub(rest, 1, length)) or '1000000000000000'
      if #rest > tonumber(length) then last = '' end
    end
    -- Anything else has a mark, an epoch or a name, is foreign, or shows that the clock was set back.
    if type(last) == 'string' and #last == 16 and #fence == 16 and last < fence and not string.find(last, '%D') then return fence end
    local undone
    if is_new then
      undone = redis.pcall('DEL', KEYS[1], KEYS[2])
    else
      if type(last) == 'string' then redis.call('SET', KEYS[2], last) end
      undone = redis.pcall('DEL', KEYS[1])
    end
    if type(undone) == 'table' then
      -- This user may set keys, but not delete them: they end with this millisecond. Until then the fence is none, as it may
      -- be below the floor.
      if is_new then redis.call('SET', KEYS[2], '?', 'PX', 1) end
      redis.call('SET', KEYS[1], ARGV[1], 'PX', 1)
      return undone
    end
  end
end
