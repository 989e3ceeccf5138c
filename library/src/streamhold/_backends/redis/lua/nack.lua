-- nack: write an entry once more, or its dead letter, and acknowledge it, in one step and only while it is ours
-- (C-16, C-17). Also hands an entry back (the same without counting an attempt).
-- KEYS[1] stream
-- KEYS[2] where the new entry goes: the stream again, or its dead letters; absent: nowhere, the event is given up
-- ARGV[1] group   ARGV[2] consumer   ARGV[3] entry id
-- ARGV[4] about how many entries KEYS[2] keeps, 0 all   ARGV[5] ms until KEYS[2] expires, 0 never
-- ARGV[6…] fields of the new entry
-- returns 1, or 0 when the entry is not pending for this consumer: then nothing was changed
local mine = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2])
if #mine == 0 then
  return 0
end
if KEYS[2] then
  local add = {'XADD', KEYS[2]}
  if tonumber(ARGV[4]) > 0 then
    add[3], add[4], add[5] = 'MAXLEN', '~', ARGV[4]
  end
  add[#add + 1] = '*'
  for at = 6, #ARGV do
    add[#add + 1] = ARGV[at]
  end
  redis.call(unpack(add))
  if tonumber(ARGV[5]) > 0 then
    redis.call('PEXPIRE', KEYS[2], ARGV[5])
  end
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
return 1
