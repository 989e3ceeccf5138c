-- stale: which of many topics hold something that was left alone for too long (C-18), in one look for all.
-- KEYS[1…] streams
-- ARGV[1] group   ARGV[2…] idle time in ms, one for each stream
-- returns the positions of those streams, from 1; one that cannot be asked is among them, so that asking it alone tells
local stale = {}
for at = 1, #KEYS do
  local found = redis.pcall('XPENDING', KEYS[at], ARGV[1], 'IDLE', ARGV[at + 1], '-', '+', 1)
  if found.err or #found > 0 then
    stale[#stale + 1] = at
  end
end
return stale
