-- leave: remove a consumer that has nothing pending (S13). One with pending entries stays: removing it would lose them.
-- KEYS[1] stream
-- ARGV[1] group   ARGV[2] consumer
-- returns 1 when it is gone, 0 when it has pending entries
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then
  return 0
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
