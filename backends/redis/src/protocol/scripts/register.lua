-- A register: a string `<stamp> <name>`, a line feed, and the value.
--
-- The writer draws the stamp. The name is empty unless the keys carry only its hash.

-- Writes a key, if one is given, for the sake of replicas: they confirm what was written over the same connection.
local function write_for_replicas(key)
  if key then redis.call('SET', key, '', 'PX', 1) end
end

-- Returns the register, nil if absent, or an error if it is not ours or of another name.
local function read_register(key, name)
  local stored = redis.call('GET', key)
  if not stored then return nil end
  local stamp, whose, value = string.match(stored, '^(%x+) ([^\n]*)\n(.*)$')
  if not stamp then return nil, redis.error_reply('FOREIGN no register of leasehold is stored in ' .. key) end
  if whose ~= name then return nil, redis.error_reply('FOREIGN ' .. key .. ' belongs to a register of another name') end
  return { stamp = stamp, value = value }
end
