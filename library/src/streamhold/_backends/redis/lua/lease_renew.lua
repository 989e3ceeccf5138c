-- lease_renew: refresh a lease that is still held (C-43, C-47).
-- KEYS[1] lease    <prefix>:lease:<key>          string = owner, PX ttl
-- KEYS[2] fence    companion of the lease        string = "<token> <owner>", PX ttl + lock delay
-- KEYS[3] floor    one for many leases           string = largest token given out, never expires
-- ARGV[1] owner    ARGV[2] ttl in ms    ARGV[3] lock delay in ms (0: none)    ARGV[4] "1" gives tokens, "0" does not
-- ARGV[5] token of this holding; "" asks for the owner only
-- returns {1, token} when refreshed (token 0 without fencing), else {0, 0}: not held, or held under another token

local owner, ttl, delay = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local fenced, expected = ARGV[4] == '1', ARGV[5]

if redis.call('GET', KEYS[1]) ~= owner then
  return {0, 0}
end

local token, named = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (.*)$')
token = tonumber(token or '0')
if expected ~= '' then
  if named ~= owner or token ~= tonumber(expected) then
    -- Same owner, but not this holding: another holder was in between.
    return {0, 0}
  end
elseif not fenced then
  token = 0
elseif named ~= owner or token == 0 then
  -- A pod without fencing put this owner in.
  local time = redis.call('TIME')
  local floor = tonumber(redis.call('GET', KEYS[3]) or '0') or 0
  token = math.max(token + 1, floor + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
  redis.call('SET', KEYS[3], string.format('%.0f', token))
end

redis.call('PEXPIRE', KEYS[1], ttl)
if fenced or delay > 0 then
  redis.call('SET', KEYS[2], string.format('%.0f', token) .. ' ' .. owner, 'PX', ttl + delay)
end
return {1, token}
