-- Returns the end of a channel's sequence, and the publications after a place.
-- KEYS: the channel's record, its stream, the number of the server's data.
-- ARGV: the place (epoch or '', offset, tag), most publications, time kept (ms), an epoch for a new
--       sequence, most bytes of publications, the number of the data as the node knows it.
-- Returns: epoch, offset, tag, 1 if the place is in the sequence, publications, the place before
--          the first that is kept, if the publication there is not: 'OFFSET-TAG' or ''.
local epoch, place, before = unpack(redis.call('HMGET', KEYS[1], 'e', 'p', 'b'))
local offset, tag = string.match(place or '', '^(%d+) (%d+) ')
if not (epoch and place) then
  epoch, offset, tag = ARGV[6], '0', '0'
  if ARGV[1] ~= '' and ARGV[2] == '0' and redis.call('GET', KEYS[3]) == ARGV[8] then
    -- It has expired while the node could not ask, and nothing was published.
    epoch = ARGV[1]
  end
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[1], 'e', epoch, 'p', '0 0 ')
end
-- A channel that is only joined is remembered as long as nodes ask.
redis.call('PEXPIRE', KEYS[1], offset == '0' and 60000 or ARGV[5] + 3600000)
local continues = 0
if epoch == ARGV[1] then
  local asked = tonumber(ARGV[2])
  local is_other = asked > tonumber(offset)
  if asked == 0 then
    continues = 1
  elseif ARGV[2] == offset then
    is_other = tag ~= ARGV[3]
    continues = is_other and 0 or 1
  elseif not is_other then
    local entry = redis.call('XRANGE', KEYS[2], ARGV[2], ARGV[2], 'COUNT', 1)[1]
    local id = entry and entry[1] or before
    if id and string.match(id, '^%d+') == ARGV[2] then
      is_other = string.match(id, '%-(%d+)$') ~= ARGV[3]
      continues = is_other and 0 or 1
    end
  end
  if is_other then
    -- The end of the sequence was lost, and maybe replaced: its places mean something else now.
    epoch = ARGV[6]
    redis.call('HSET', KEYS[1], 'e', epoch)
  end
end
-- Reads on from a place until there are enough: one at a time, or a few while they are small. What
-- is read and does not fit would only be dropped here, and the server does nothing else meanwhile.
local function collect(command, from, to)
  local all, bytes, most, count = {}, 0, tonumber(ARGV[4]), 1
  while #all < most do
    local before = bytes
    local some = redis.call(command, KEYS[2], from, to, 'COUNT', math.min(count, most - #all))
    for _, entry in ipairs(some) do
      bytes = bytes + #entry[2][2]
      if #all > 0 and bytes > tonumber(ARGV[7]) then return all end
      all[#all + 1] = entry
    end
    if #some < count then break end
    from = '(' .. some[#some][1]
    count = bytes - before <= 1024 * count and math.min(2 * count, 8) or 1
  end
  return all
end
local entries
if continues == 1 then
  entries = collect('XRANGE', string.format('%.0f', tonumber(ARGV[2]) + 1), '+')
else
  local newest = collect('XREVRANGE', '+', '-')
  entries = {}
  for at = #newest, 1, -1 do entries[#entries + 1] = newest[at] end
end
return {epoch, offset, tag, continues, entries, before or ''}
