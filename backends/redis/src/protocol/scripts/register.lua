-- A register: a string `<stamp> <name>` with a line's end, and the value behind it.
--
-- The writer draws the stamp; the name is there where the keys carry only its hash.

-- What stands there, nothing where nothing does, and an error where it is not ours or belongs to another name.
local function read_register(key, name)
  local stored = redis.call('GET', key)
  if not stored then return nil end
  local stamp, whose, value = string.match(stored, '^(%x+) ([^\n]*)\n(.*)$')
  if not stamp then return nil, redis.error_reply('FOREIGN no register of leasehold is stored in ' .. key) end
  if whose ~= name then return nil, redis.error_reply('FOREIGN ' .. key .. ' belongs to a register of another name') end
  return { stamp = stamp, value = value }
end
