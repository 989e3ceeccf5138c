-- hold: say that this consumer still works on entries, so that nobody takes them over (C-18, C-20).
-- KEYS[1] stream
-- ARGV[1] group   ARGV[2] consumer   ARGV[3…] entry ids
-- returns the ids that are not pending for this consumer any more
-- A trimmed entry is left alone: claiming it would drop it from the pending list, and its nack would find nothing.
local lost = {}
for at = 3, #ARGV do
  local id = ARGV[at]
  if #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2]) == 0 then
    lost[#lost + 1] = id
  elseif #redis.call('XRANGE', KEYS[1], id, id) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'JUSTID')
  end
end
return lost
