-- lease_release: free a lease if this owner holds it (C-42), and with it the lock delay.
-- KEYS[1] lease    <prefix>:lease:<key>          string = owner
-- KEYS[2] fence    companion of the lease        string = "<token> <owner>"
-- ARGV[1] owner    ARGV[2] token of this holding; "" asks for the owner only
-- returns 1 when the lease was freed, else 0

local owner, expected = ARGV[1], ARGV[2]
local holder = redis.call('GET', KEYS[1])
local token, named = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (.*)$')
local ours = named == owner and (expected == '' or tonumber(token) == tonumber(expected))

if holder == owner and (ours or expected == '' or not named) then
  redis.call('DEL', KEYS[1], KEYS[2])
  return 1
end
if not holder and ours then
  -- It ran out before, but its holder is back and done: nobody need wait for the lock delay.
  redis.call('DEL', KEYS[2])
end
return 0
