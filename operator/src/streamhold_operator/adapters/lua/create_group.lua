-- create_group: create a consumer group, and its expiring stream where there is none, in one step (C-11).
-- KEYS[1] stream   <prefix>:<topic>
-- ARGV[1] group    ARGV[2] id after which it reads    ARGV[3] idle TTL in ms, more than 0
-- returns 1 when made, else the error of XGROUP (BUSYGROUP, WRONGTYPE): then the key's expiry is left as it is
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM')
if made.err then
  return made
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
