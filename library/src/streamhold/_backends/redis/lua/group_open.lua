-- group_open: make sure that a group exists, without moving one that does (C-11, C-13, C-21).
-- KEYS[1] stream
-- ARGV[1] group   ARGV[2] where a new group starts: after an entry id, or $ for the end
-- ARGV[3] ms until the stream expires, set when the group is made, 0 never
-- ARGV[4] 1: make a missing stream   0: leave it missing
-- returns {1 made | 0 it was there | -1 no stream, the entry id after which the group reads on}
local there = redis.call('EXISTS', KEYS[1]) == 1
if not there and ARGV[4] ~= '1' then
  return {-1, '0-0'}
end

local function member(reply, name)
  for at = 1, #reply, 2 do
    if reply[at] == name then
      return reply[at + 1]
    end
  end
end

local last = there and member(redis.call('XINFO', 'STREAM', KEYS[1]), 'last-generated-id') or '0-0'
if there then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    if member(group, 'name') == ARGV[1] then
      return {0, member(group, 'last-delivered-id')}
    end
  end
end

local function parts(id)
  local ms, sequence = string.match(id, '^(%d+)-?(%d*)$')
  return tonumber(ms), tonumber(sequence) or 0
end

local start = ARGV[2]
if start == '$' then
  start = last
else
  -- A stream that ends before the entry we saw last is another one than we read: it starts over.
  local start_ms, start_sequence = parts(start)
  local last_ms, last_sequence = parts(last)
  if last_ms < start_ms or (last_ms == start_ms and last_sequence < start_sequence) then
    start = '0-0'
  end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], start, 'MKSTREAM')
if tonumber(ARGV[3]) > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {1, start}
