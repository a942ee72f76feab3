-- Removes a client from the members of a channel, and tells the others, unless who removed the node
-- has done so.
-- KEYS: the node's members in the channel, the channel's nodes, the node's channels, the number of
--       the server's data.
-- ARGV: node, channel, client, its information, '1' if joins and leaves are announced, the name of
--       the channel's messages, '1' if the data was lost since the client was added, the number of
--       the data when it was added.
local info = redis.call('HGET', KEYS[1], ARGV[3])
local is_lost = ARGV[7] == '1' or redis.call('GET', KEYS[4]) ~= ARGV[8]
redis.call('HDEL', KEYS[1], ARGV[3])
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SREM', KEYS[2], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[2])
end
if ARGV[5] == '1' and (info or is_lost) then
  redis.call('PUBLISH', ARGV[6], '\1\2l' .. ARGV[1] .. ARGV[3] .. (info or ARGV[4]))
end
return 1
