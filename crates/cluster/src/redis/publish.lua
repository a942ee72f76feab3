-- Gives a publication its place in the channel's sequence, keeps it, and delivers it.
-- KEYS: the channel's record, its stream.
-- ARGV: channel, publication, tag, publications kept, time kept (ms), an epoch for a new sequence,
--       the node's field, the number of the publication among the node's, '1' if it was sent
--       before: the connection of that time is closed, the number of the publication that must
--       have come before it, or '0', bytes kept.
-- Returns: 1; 0 if it was there; -1 if the one before it is not there, so it was left out.
local epoch, offset, tag, done, kept, first = unpack(
  redis.call('HMGET', KEYS[1], 'e', 's', 't', ARGV[7], 'k', 'b'))
-- A node's field: its last publication that was taken, and the offset that it got.
done = tonumber(string.match(done or '', '^%d+') or 0)
if ARGV[9] == '1' and done >= tonumber(ARGV[8]) then return 0 end
if tonumber(ARGV[10]) > done then return -1 end
local exists = redis.call('EXISTS', KEYS[2]) == 1
local is_new = not epoch
if is_new then
  -- The record was lost: what is left belongs to no sequence that can be continued.
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

-- The place before the first publication that is kept, which nodes may be at.
local before
if not is_new and not exists and offset ~= '0' then
  -- The history has expired.
  before = offset .. '-' .. tag
end
local most, limit = tonumber(ARGV[4]), tonumber(ARGV[11])
-- Bytes of a publication, with what Redis needs besides.
local function cost(publication) return #publication + 128 end
-- Publications in the stream, and their bytes. They are noted with the offset of the last one: a
-- release that does not count may have published since, and then they are counted.
local at, count, bytes = string.match(kept or '', '^(%d+) (%d+) (%d+)$')
if is_new or not exists then
  count, bytes = 0, 0
elseif at == offset then
  count, bytes = tonumber(count), tonumber(bytes)
else
  count, bytes = 0, 0
  local from = '+'
  while not before do
    local entry = redis.call('XREVRANGE', KEYS[2], from, '-', 'COUNT', 1)[1]
    if not entry then break end
    if count > most or bytes + cost(entry[2][2]) > limit then
      before = entry[1]
    else
      count, bytes, from = count + 1, bytes + cost(entry[2][2]), '(' .. entry[1]
    end
  end
end
local size, from = cost(ARGV[2]), '-'
if size > limit then
  count, bytes, before = 0, 0, nil
elseif before then
  from = '(' .. before
end
while count > 0 and (count > most or bytes + size > limit) do
  local oldest = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', 1)[1]
  if not oldest then
    count, bytes = 0, 0
  else
    count, bytes = count - 1, bytes - cost(oldest[2][2])
    before, from = oldest[1], '(' .. oldest[1]
  end
end
if size <= limit then count, bytes = count + 1, bytes + size end
offset = string.format('%.0f', tonumber(offset) + 1)
redis.call('HSET', KEYS[1], 'e', epoch, 's', offset, 't', ARGV[3],
  ARGV[7], ARGV[8] .. ':' .. offset, 'k', string.format('%s %d %d', offset, count, bytes),
  'b', before or first or '')
if size <= limit then
  local add = {'XADD', KEYS[2], 'MAXLEN', count, offset .. '-' .. ARGV[3], 'd', ARGV[2]}
  local answer = redis.pcall(unpack(add))
  if type(answer) == 'table' and answer.err then
    if string.find(answer.err, 'smaller') then
      -- The end of the record was lost, but not that of the stream: as above. Offsets go on, since
      -- nodes' fields have them.
      epoch = ARGV[6]
      redis.call('DEL', KEYS[2])
      redis.call('HSET', KEYS[1], 'e', epoch, 'k', string.format('%s 1 %d', offset, size))
    end
    redis.call(unpack(add))
  end
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
else
  -- It is not kept, nor is what came before it: who has not got it cannot get all that follows.
  redis.call('DEL', KEYS[2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[5] + 3600000)
redis.call('PUBLISH', ARGV[1], epoch .. ':' .. offset .. ':' .. ARGV[3] .. ' ' .. ARGV[2])
return 1
