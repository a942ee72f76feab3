-- Gives a publication its place in the channel's sequence, keeps it, and delivers it.
-- KEYS: the channel's record, its stream.
-- ARGV: channel, publication, tag, publications kept, time kept (ms), an epoch for a new sequence,
--       the node's field, the number of the publication among the node's, '1' if it was sent
--       before: the connection of that time is closed, the number of the publication that must
--       have come before it, or '0'.
-- Returns: 1; 0 if it was there; -1 if the one before it is not there, so it was left out.
local epoch, offset, tag, done = unpack(redis.call('HMGET', KEYS[1], 'e', 's', 't', ARGV[7]))
-- A node's field: its last publication that was taken, and the offset that it got.
done = tonumber(string.match(done or '', '^%d+') or 0)
if ARGV[9] == '1' and done >= tonumber(ARGV[8]) then return 0 end
if tonumber(ARGV[10]) > done then return -1 end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
if not epoch or last and string.match(last[1], '^%d+') ~= offset then
  -- One of the two was lost: what is left belongs to no sequence that can be continued. Offsets of
  -- the next one are higher, since nodes' fields have them.
  epoch, offset = ARGV[6], offset or '0'
  redis.call('DEL', KEYS[2])
elseif done == 0 and redis.call('HLEN', KEYS[1]) > 400 then
  -- Fields of nodes that are gone, most of them. Those that have published last stay: a node sends
  -- again what it has sent a moment before.
  local fields = {}
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 1) == 'n' then
      local place = string.match(redis.call('HGET', KEYS[1], field), ':(%d+)$')
      fields[#fields + 1] = {field, tonumber(place or 0)}
    end
  end
  table.sort(fields, function(one, other) return one[2] > other[2] end)
  for at = 201, #fields do redis.call('HDEL', KEYS[1], fields[at][1]) end
end
if not last and offset ~= '0' then
  -- The history has expired: it begins behind this place, which nodes may be at.
  redis.call('HSET', KEYS[1], 'b', offset .. '-' .. tag)
end
offset = string.format('%.0f', tonumber(offset) + 1)
redis.call('HSET', KEYS[1], 'e', epoch, 's', offset, 't', ARGV[3],
  ARGV[7], ARGV[8] .. ':' .. offset)
redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[4] + 1, offset .. '-' .. ARGV[3], 'd', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[5] + 3600000)
redis.call('PUBLISH', ARGV[1], epoch .. ':' .. offset .. ':' .. ARGV[3] .. ' ' .. ARGV[2])
return 1
