-- Says that a node lives, and finds those that do not.
-- KEYS: the node's sign of life, all nodes, the number of the server's data.
-- ARGV: node, time for which it lives (ms), a number for new data, the beginning of signs of life,
--       a hash of the node's rules.
-- Returns: 1 if it lived, the number of the data, time until the next node may be dead (ms), up to
--          16 nodes that are, up to 16 that live and have other rules.
local lived = redis.call('EXISTS', KEYS[1])
redis.call('SET', KEYS[1], ARGV[5], 'PX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[1])
local epoch = redis.call('GET', KEYS[3])
if not epoch then
  redis.call('SET', KEYS[3], ARGV[3])
  epoch = ARGV[3]
end
local rest, dead, others = tonumber(ARGV[2]), {}, {}
for _, node in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  local left = redis.call('PTTL', ARGV[4] .. node)
  if left >= 0 then
    rest = math.min(rest, left)
    if #others < 16 and redis.call('GET', ARGV[4] .. node) ~= ARGV[5] then
      others[#others + 1] = node
    end
  elseif left == -2 and #dead < 16 then
    dead[#dead + 1] = node
  end
end
return {lived, epoch, rest, dead, others}
