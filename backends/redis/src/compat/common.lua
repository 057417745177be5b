-- What the scripts of all dialects begin with.

-- Asks for what may be a key of another type: then the answer is nil, and the refusal beside it. Any other refusal, for
-- instance for want of rights, is raised.
local function ask(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if string.find(answer.err, 'WRONGTYPE', 1, true) then return nil, answer end
  return redis.call(...)
end

-- Returns the error of a replica, whose copy may lag, or of a server whose cluster is down: only the server that
-- decides may report who holds, or that something is gone. Changes nothing, even if the key is a string. Ignores other
-- refusals.
local function refuse_as_replica(key)
  local answer = redis.pcall('HDEL', key, '')
  if type(answer) ~= 'table' or not answer.err then return nil end
  if string.find(answer.err, 'READONLY', 1, true) then return answer end
  return string.find(answer.err, 'while the cluster is down', 1, true) and answer or nil
end

-- Lets a key that is there live for `ttl` at least. One that never expires is left so. A replica refuses in any case.
local function keep(key, ttl)
  local left = redis.call('PTTL', key)
  if left ~= -1 then
    redis.call('PEXPIRE', key, math.max(left, ttl))
  elseif refuse_as_replica(key) then
    -- Raises the same refusal.
    redis.call('HDEL', key, '')
  end
end

