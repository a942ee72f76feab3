-- Tries the commands that the other scripts have, on names of its own.
-- KEYS: a hash, a stream, a set, a string.
-- ARGV: a name of messages.
-- Returns: name and answer of each command that the user may not execute.
local refused = {}
local function try(name, ...)
  local answer = redis.pcall(name, ...)
  local err = type(answer) == 'table' and answer.err or ''
  -- Releases differ in their words. A server without memory refuses, too, and that passes.
  if string.find(err, 'NOPERM') or string.find(err, 'ACL') or string.find(err, 'The user exec') then
    refused[#refused + 1] = string.lower(name)
    refused[#refused + 1] = err
  end
end
try('HSET', KEYS[1], 'a', '1')
try('HGET', KEYS[1], 'a')
try('HMGET', KEYS[1], 'a')
try('HLEN', KEYS[1])
try('HKEYS', KEYS[1])
try('HRANDFIELD', KEYS[1])
try('HDEL', KEYS[1], 'a')
try('XADD', KEYS[2], 'MAXLEN', 1, '1-1', 'd', '')
try('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)
try('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
try('SADD', KEYS[3], 'a')
try('SMEMBERS', KEYS[3])
try('SREM', KEYS[3], 'a')
try('SET', KEYS[4], '1')
try('GET', KEYS[4])
try('EXISTS', KEYS[4])
try('PTTL', KEYS[4])
for _, key in ipairs(KEYS) do redis.pcall('PEXPIRE', key, 1000) end
try('PEXPIRE', KEYS[4], 1000)
try('DEL', unpack(KEYS))
try('PUBLISH', ARGV[1], '')
return refused
