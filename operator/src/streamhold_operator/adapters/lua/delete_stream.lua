-- delete_stream: delete a stream and its companions, unless the key holds something else.
-- KEYS[1] stream   <prefix>:<topic>
-- KEYS[2…] its companions, same hash slot
-- returns how many keys were deleted
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' and kind ~= 'none' then
  return 0
end
return redis.call('DEL', unpack(KEYS))
