-- Adds a client to the members of a channel, and tells the others.
-- KEYS: the node's members in the channel, the channel's nodes, the node's channels, all nodes.
-- ARGV: node, channel, client, its information, '1' if joins and leaves are announced, the name of
--       the channel's messages.
local is_new = redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[5])
-- A node that was removed, and does not know it, may end before its next sign of life.
redis.call('SADD', KEYS[4], ARGV[1])
if is_new == 1 and ARGV[5] == '1' then
  redis.call('PUBLISH', ARGV[6], '\1\2j' .. ARGV[1] .. ARGV[3] .. ARGV[4])
end
return 1
