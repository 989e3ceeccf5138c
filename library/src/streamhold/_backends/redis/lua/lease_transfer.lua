-- lease_transfer: hand a lease over without a gap (C-44, C-47).
-- KEYS[1] lease    <prefix>:lease:<key>          string = owner, PX ttl
-- KEYS[2] fence    companion of the lease        string = "<token> <owner>", PX ttl + lock delay
-- KEYS[3] floor    one for many leases           string = largest token given out, never expires
-- ARGV[1] from owner    ARGV[2] to owner    ARGV[3] ttl in ms    ARGV[4] lock delay in ms (0: none)
-- ARGV[5] "1" gives tokens, "0" does not    ARGV[6] token of the holding; "" asks for the owner only
-- returns {1, token of the new holding} (0 without fencing), else {0, 0}: not held, or held under another token

local from, to, ttl, delay = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local fenced, expected = ARGV[5] == '1', ARGV[6]

if redis.call('GET', KEYS[1]) ~= from then
  return {0, 0}
end

local token, named = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (.*)$')
token = tonumber(token or '0')
if expected ~= '' and (named ~= from or token ~= tonumber(expected)) then
  return {0, 0}
end

if not fenced then
  token = 0
elseif from ~= to or named ~= from or token == 0 then
  local time = redis.call('TIME')
  local floor = tonumber(redis.call('GET', KEYS[3]) or '0') or 0
  token = math.max(token + 1, floor + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
  redis.call('SET', KEYS[3], string.format('%.0f', token))
end

redis.call('SET', KEYS[1], to, 'PX', ttl)
if fenced or delay > 0 then
  redis.call('SET', KEYS[2], string.format('%.0f', token) .. ' ' .. to, 'PX', ttl + delay)
end
return {1, token}
