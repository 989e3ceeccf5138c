-- lease_acquire: take, refresh or refuse a lease in one step (C-40, C-47).
-- KEYS[1] lease    <prefix>:lease:<key>          string = owner, PX ttl; pods without fencing write only this one
-- KEYS[2] fence    companion of the lease        string = "<token> <owner>", PX ttl + lock delay
-- KEYS[3] floor    one for many leases           string = largest token given out, never expires
-- ARGV[1] owner    ARGV[2] ttl in ms    ARGV[3] lock delay in ms (0: none)    ARGV[4] "1" gives tokens, "0" does not
-- returns {1, owner, token} when ARGV[1] holds it now (token 0 without fencing),
--         else {0, holder, ms until it ends by itself; -1: never}

local owner, ttl, delay = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local fenced = ARGV[4] == '1'

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= owner then
  return {0, holder, redis.call('PTTL', KEYS[1])}
end

local token, named = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (.*)$')
token = tonumber(token or '0')
if not holder and named and named ~= owner and delay > 0 then
  -- The record outlives its lease by the lock delay: its holder vanished without releasing.
  return {0, named, redis.call('PTTL', KEYS[2])}
end

if not fenced then
  token = 0
elseif not (holder and named == owner and token > 0) then
  -- A new holding; also when a pod without fencing put this owner in. The clock serves when the floor was lost.
  local time = redis.call('TIME')
  local floor = tonumber(redis.call('GET', KEYS[3]) or '0') or 0
  token = math.max(token + 1, floor + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
  -- %.0f: a number of this size would otherwise be written with an exponent.
  redis.call('SET', KEYS[3], string.format('%.0f', token))
end

redis.call('SET', KEYS[1], owner, 'PX', ttl)
if fenced or delay > 0 then
  redis.call('SET', KEYS[2], string.format('%.0f', token) .. ' ' .. owner, 'PX', ttl + delay)
end
return {1, owner, token}
