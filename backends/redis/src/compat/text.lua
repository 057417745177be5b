-- A lock as one string: whoever wrote it holds. What every script of these dialects begins with.
--
-- Ground rules: every key comes in through KEYS. What leasehold writes is `<claim id, 32 hex digits>:<note>`; what
-- others write is theirs, and never touched but by somebody who breaks it on purpose. Several libraries write 32 digits
-- alone.

-- The id that leasehold has put there; nil where another library wrote it.
local function written_id(value)
  local id = string.sub(value, 1, 32)
  if #id < 32 or string.find(id, '[^0-9a-f]') or string.sub(value, 33, 33) ~= ':' then return nil end
  return id
end

-- What an onlooker knows the holder by, and may break it by.
local function shown_id(value)
  return written_id(value) or string.sub(redis.sha1hex(value), 1, 32)
end
