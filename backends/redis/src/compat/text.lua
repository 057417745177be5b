-- A lock as one string: whoever wrote it holds. What every script of these dialects begins with.
--
-- Ground rules: every key comes in through KEYS. What leasehold writes is `<claim id, 32 hex digits>` or
-- `<claim id>:<note>`; what others write is theirs, and never touched but by somebody who breaks it on purpose.

-- The id that leasehold, or another library that writes 32 digits, has put there; nil where it is written otherwise.
local function written_id(value)
  local id = string.sub(value, 1, 32)
  if #id < 32 or string.find(id, '[^0-9a-f]') then return nil end
  if #value == 32 or string.sub(value, 33, 33) == ':' then return id end
  return nil
end

-- What an onlooker knows the holder by, and may break it by.
local function shown_id(value)
  return written_id(value) or string.sub(redis.sha1hex(value), 1, 32)
end
