-- Removes members of a node that is dead, and publishes their leaves.
-- KEYS: the node's sign of life, who removes it, the node's channels, all nodes.
-- ARGV: the dead node, the one that removes it, the beginning of all names, most members, time for
--       which another one keeps away (ms).
-- Returns: 1 if there are more.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if not redis.call('SET', KEYS[2], ARGV[2], 'NX', 'PX', ARGV[5]) then
  if redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
local left = tonumber(ARGV[4])
local channels = redis.call('HRANDFIELD', KEYS[3], 64, 'WITHVALUES')
for at = 1, #channels, 2 do
  if left <= 0 then return 1 end
  local key = ARGV[3] .. '.p.' .. ARGV[1] .. '.' .. channels[at]
  local members = redis.call('HRANDFIELD', key, left, 'WITHVALUES')
  for member = 1, #members, 2 do
    redis.call('HDEL', key, members[member])
    if channels[at + 1] == '1' then
      local leave = '\1\2l' .. ARGV[1] .. members[member] .. members[member + 1]
      redis.call('PUBLISH', ARGV[3] .. '.m.' .. channels[at], leave)
    end
  end
  left = left - #members / 2
  if redis.call('EXISTS', key) == 0 then
    redis.call('SREM', ARGV[3] .. '.w.' .. channels[at], ARGV[1])
    redis.call('HDEL', KEYS[3], channels[at])
  end
end
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
redis.call('SREM', KEYS[4], ARGV[1])
redis.call('DEL', KEYS[2])
return 0
