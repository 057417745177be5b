-- The rest of an acquisition: the queue, and the claims beside this one. `grant_alone.lua` describes KEYS, ARGV and answers.
local waited

-- Milliseconds between two looks of a waiter outside the queue whose message about a release could not be ordered.
local UNHEARD_LOOK = 500

local function expire_at(key, stop) redis.call('PEXPIREAT', key, stop + SLACK) end

local function write_claim(seq, member) redis.call('HSET', claims, id, describe(seq, member)) end

-- Turns a single value into a sorted set, so that another claim can hold or wait beside it. Its caller lets `claims` expire.
local function unfold(state)
  local single = state.single
  if not single then return end
  -- This changes nothing, as no member is empty. It is refused if the rights, the memory or the type of the key do not
  -- allow what follows, while the single value still exists.
  redis.call('ZADD', queue, 'XX', 0, '')
  redis.call('HSET', claims, id_of(single.member), entry_of(single, record))
  redis.call('DEL', held)
  redis.call('ZADD', held, single.stop, single.member)
  expire_at(held, single.stop)
  state.single = nil
end

-- Grants a claim. `latest` is when the last other lease or place ends.
local function grant(member, record, known, latest, state)
  local seq, text, stored = next_fence(record)
  unfold(state)
  local stop = now + ttl
  if known then
    -- Freeing memory is allowed when memory has run out, and so are later writes of the same script: a claim that
    -- is already queued is served.
    redis.call('ZREM', queue, member)
    redis.call('ZREM', places, member)
  end
  write_claim(text, member)
  -- Before the places are looked for, the mark stays.
  write_fence(stored, waited and '+' or waited == nil and record.mark or '')
  redis.call('ZADD', held, stop, member)
  if state.count >= MAX_READ or state.was_written then
    add_held(state, member, 1)
    write_load(state, claims, stored)
  end
  latest = math.max(stop, latest)
  expire_at(held, latest)
  expire_at(claims, latest)
  return { 1, seq, epoch }
end

-- Returns an entry with the note of this request, or false if it has that note already: another client may continue the
-- claim, and its note replaces the old one.
local function renoted(entry)
  local head, seen = string.match(entry, '^([%d.]+:%d+:%d+:%d+:)(.*)$')
  return head and seen ~= note and head .. note
end

-- Grants a single value again to its holder: returns the same fence and extends the lease. Another client may continue the
-- claim, and its note replaces the old one.
local function grant_single_again(single, record)
  -- Keeping a key alive is allowed when memory has run out, and so are later writes of the same script.
  extend(held, now + ttl)
  if single.note ~= note then
    redis.call('SET', held, single.member .. single.mark .. single.since .. ':' .. note, 'XX', 'KEEPTTL')
  end
  if record.text ~= '' then return { 1, record.seq, record.epoch, 1 } end
  -- The fence is lost.
  local seq, text, stored = next_fence(record)
  write_fence(stored, '')
  return { 1, seq, epoch, 1 }
end

-- Grants a held claim again: extends, never shortens its lease. Its fence stays unless lost.
local function grant_again(state, record)
  if state.single then return grant_single_again(state.single, record) end
  local stop = math.max(state.own_end, now + ttl)
  local latest = math.max(stop, state.latest)
  -- Keeping a key alive is allowed when memory has run out, and so are later writes of the same script.
  expire_at(held, latest)
  local stored = redis.call('HGET', claims, id) or ''
  local known_epoch, known = parse_fence(stored)
  latest = math.max(latest, last_place(places))
  if not known or known == 0 then
    add_held(state, state.own, -1)
    local answer = grant(state.own, record, nil, latest, state)
    answer[4] = 1
    return answer
  end
  local entry = renoted(stored)
  if entry then redis.call('HSET', claims, id, entry) end
  redis.call('ZADD', held, 'XX', stop, state.own)
  expire_at(claims, latest)
  return { 1, known, known_epoch, 1 }
end

-- Returns the claim's rank in the queue and its member there: a share is fixed by the first request.
local function find_place()
  local rank = redis.call('ZRANK', queue, own)
  if rank then return rank, own end
  local share = string.match(redis.call('HGET', claims, id) or '', '^0:%d+(:%d+:%d+):')
  if not share then return nil, own end
  rank = redis.call('ZRANK', queue, id .. share)
  return rank, rank and id .. share or own
end

local function wait_in_queue(rank, state)
  unfold(state)
  if rank then
    expire_at(places, math.max(now + wait, last_place(places)))
  else
    write_claim('0', own)
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
    redis.call('ZADD', queue, (tonumber(last[2]) or 0) + 1, own)
  end
  if record.text ~= '' and record.mark == '' then write_fence(record.text, '+') end
  redis.call('ZADD', places, now + wait, own)
  local latest = last_place(places)
  expire_at(queue, latest)
  expire_at(places, latest)
  expire_at(claims, math.max(latest, state.latest))
end

-- Challenges a claim that was silent for CALL_GRACE or longer. The ends of places show when a claim last asked, as all are
-- kept equally long. Returns the milliseconds until another look at it is useful: soon if the asking claim is new.
local function challenge(state, member, is_new)
  local stop = tonumber(redis.call('ZSCORE', places, member) or now + CALL_GRACE)
  local silent = math.max(wait - math.max(stop - now, 0), 0)
  if silent < CALL_GRACE then return (is_new and CALL_GRACE or CHALLENGE_AFTER) - silent end
  if stop > now + CALL_GRACE then
    stop = now + CALL_GRACE
    summon(state, places, member)
  end
  return math.max(stop - now, 1)
end

-- Calls more of the queue if calls go unanswered. For each silent claim it takes PROBED_PER_SILENT from the head, and calls
-- those not heard from since the first such call. Returns the milliseconds until the next look calls more, or nil.
local function probe(state)
  if wait <= CALL_GRACE then return nil end
  local grace_ends = now + CALL_GRACE
  local first = tonumber(redis.call('ZRANGE', places, 0, 0, 'WITHSCORES')[2])
  if first > grace_ends then return nil end
  local unanswered = grace_ends - first
  if unanswered < PROBE_AFTER then return PROBE_AFTER - unanswered end
  local silent_by = grace_ends - SILENT_AFTER
  local silent = math.max(redis.call('ZCOUNT', places, '-inf', silent_by), 1)
  local reach = silent < PROBED_PER_SILENT and silent * PROBED_PER_SILENT or MAX_QUEUE
  local next_end = tonumber(redis.call('ZRANGEBYSCORE', places, '(' .. silent_by, grace_ends, 'WITHSCORES', 'LIMIT', 0, 1)[2])
  -- Counts the claims not heard from since the first unanswered call.
  local least, most = '(' .. grace_ends, '(' .. (now - unanswered + wait)
  local unheard = redis.call('ZCOUNT', places, least, most)
  if unheard == 0 then return nil end
  if reach >= redis.call('ZCARD', queue) then
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', places, least, most)) do summon(state, places, member) end
    return nil
  end
  for _, member in ipairs(redis.call('ZRANGE', queue, 0, reach - 1)) do
    local stop = tonumber(redis.call('ZSCORE', places, member) or nil)
    if stop and stop > grace_ends and stop < now - unanswered + wait then
      summon(state, places, member)
      unheard = unheard - 1
    end
  end
  if unheard == 0 then return nil end
  return next_end and next_end - silent_by or SILENT_AFTER
end

local state, unreadable = read_held(held, claims, own, record.text)
if not state then return unreadable end
if state.own then return grant_again(state, record) end

waited = present == 2 or redis.call('EXISTS', places) == 1
if state.count == 0 and not waited then return grant_single(record) end

local rank, met, load, capacity, blocker
if waited then
  expire_places(queue, places, claims)
  rank, own = find_place()
end
local weight, bound = share_of(own)
local function fits(load, capacity) return load + weight <= math.min(capacity, bound) end

local admitted
if wait < 0 then
  admitted = fits(state.load, state.capacity)
  if waited and not admitted then walk(state, queue, places, claims, nil) end
elseif waited then
  met, load, capacity, blocker = walk(state, queue, places, claims, own)
  admitted = met == 'own' or (met == 'end' and fits(load, capacity))
else
  admitted = fits(state.load, state.capacity)
end

-- If this claim was called, others watch for its answer: `+` reports it. `=` reports the lease of a grant: the others know
-- only of leases that they have seen.
state.called = state.called or {}
if rank and tonumber(redis.call('ZSCORE', places, own) or now) <= now + CALL_GRACE then
  state.called[#state.called + 1] = '+' .. string.sub(own, 1, 8) .. (admitted and string.format('=%x', ttl) or '')
end

if admitted then
  local answer = grant(own, record, rank, math.max(state.latest, waited and last_place(places) or 0), state)
  tell(channel, state.called)
  return answer
end

local look_in
if wait > 0 then
  if not rank and waited and redis.call('ZCARD', queue) >= MAX_QUEUE then
    tell(channel, state.called)
    return { 2 }
  end
  wait_in_queue(rank, state)
  if blocker and blocker ~= own and fits(load, capacity) then look_in = challenge(state, blocker, not rank) end
  local probe_in = probe(state)
  look_in = math.min(look_in or probe_in or 0, probe_in or look_in or 0)
else
  if rank then
    forget({ own }, claims, queue, places)
    walk(state, queue, places, claims, nil)
  end
  if watch ~= '' and state.single and not mark_single(held, state.single) then look_in = UNHEARD_LOOK end
  -- Nothing may have been written until here, and a replica may be one for ever.
  local refusal = refuse_as_replica(held)
  if refusal then return refusal end
end
tell(channel, state.called)

local behind = 0
if wait >= 0 then behind = rank or redis.call('ZCARD', queue) - (wait > 0 and 1 or 0) end
local earliest = tonumber(redis.call('ZRANGE', places, 0, 0, 'WITHSCORES')[2])
earliest = math.min(state.earliest or earliest or now, earliest or state.earliest or now)
return { 0, state.count + behind, math.max(earliest - now, 0), look_in or 0, behind }
