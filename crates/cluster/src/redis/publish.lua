-- Gives a publication its place in the channel's sequence, keeps it, and delivers it.
-- KEYS: the channel's record, its stream; for a publication that was delivered without a place, a
--       mark of it.
-- ARGV: channel, publication, tag, publications kept, time kept (ms), an epoch for a new sequence,
--       the node's field, the number of the publication among the node's, '1' if it was sent
--       before: the connection of that time is closed, the number of the publication that must
--       have come before it, or '0', bytes kept, '1' if the time begins again now.
-- Returns: 1; 0 if it was there; -1 if the one before it is not there, so it was left out.
local record, stream, call = KEYS[1], KEYS[2], redis.call
local field = ARGV[7]
local known = call('HMGET', record, 'e', 's', 'l', field)
local epoch, offset, seen = known[1], known[2], known[3]
-- A node's field: its last publication that was taken, and the offset that it got.
local done = known[4] and tonumber(string.match(known[4], '^%d+')) or 0
if ARGV[9] == '1' and done >= tonumber(ARGV[8]) then return 0 end
if ARGV[10] ~= '0' and tonumber(ARGV[10]) > done then return -1 end
if KEYS[3] and not call('SET', KEYS[3], '', 'NX', 'PX', 60000) then
  -- Another node was first.
  call('HSET', record, ARGV[7], ARGV[8] .. ':' .. (offset or '0'))
  return 0
end
local is_new = not epoch
if is_new then
  -- The record was lost: what is left belongs to no sequence that can be continued.
  epoch, offset = ARGV[6], offset or '0'
  call('DEL', stream)
elseif done == 0 and call('HLEN', record) > 400 then
  -- Fields of nodes that are gone, most of them. Those that have published last stay: a node sends
  -- again what it has sent a moment before.
  local fields = {}
  for _, field in ipairs(call('HKEYS', record)) do
    if string.sub(field, 1, 1) == 'n' then
      local place = string.match(call('HGET', record, field), ':(%d+)$')
      fields[#fields + 1] = {field, tonumber(place or 0)}
    end
  end
  table.sort(fields, function(one, other) return one[2] > other[2] end)
  for at = 201, #fields do call('HDEL', record, fields[at][1]) end
end

-- Bytes of a publication, with what Redis needs besides.
local most, limit, size = tonumber(ARGV[4]), tonumber(ARGV[11]), #ARGV[2] + 128
local at = #offset < 14 and offset + 1 .. '' or string.format('%.0f', offset + 1)
local id, number = at .. '-' .. ARGV[3], ARGV[8] .. ':' .. at
-- As many small ones as are kept fit, so bytes are counted only while a large one may be among
-- them. One more of these is kept, which proves the place before the others. The last large one is
-- noted with the offset of the last one: a release that does not note it may have published since.
local noted, large = string.match(seen or '', '^(%d+) (%d*)$')
local small = limit / (most + 1)
if noted ~= offset then large = nil end
if size > small then large = at end
local added = false
if not is_new and large and (large == '' or at - large > most) then
  added = redis.pcall('XADD', stream, 'NOMKSTREAM', 'MAXLEN', '~', most + 1, id, 'd', ARGV[2])
end
local is_usual = type(added) == 'string'
if is_usual then
  call('HSET', record, 's', at, 't', ARGV[3], 'l', at .. ' ' .. large, field, number)
else
  -- The place before the first publication that is kept, which nodes may be at; publications that
  -- are kept, and their bytes.
  local function cost(publication) return #publication + 128 end
  local before, count, bytes = nil, 0, 0
  local is_broken = type(added) == 'table' and added.err
  if is_broken and not string.find(is_broken, 'smaller') then return added end
  if not is_new and not is_broken then
    if call('EXISTS', stream) == 0 then
      -- The history has expired.
      if offset ~= '0' then before = offset .. '-' .. (call('HGET', record, 't') or '0') end
    else
      local counted, some, sum = string.match(
        call('HGET', record, 'k') or '', '^(%d+) (%d+) (%d+)$')
      if counted == offset and large then
        count, bytes = tonumber(some), tonumber(sum)
      else
        local from = '+'
        while not before do
          local entry = call('XREVRANGE', stream, from, '-', 'COUNT', 1)[1]
          if not entry then break end
          if count >= most or bytes + cost(entry[2][2]) > limit then
            before = entry[1]
          else
            local this = cost(entry[2][2])
            count, bytes, from = count + 1, bytes + this, '(' .. entry[1]
            if this > small then large = large or string.match(entry[1], '^%d+') end
          end
        end
      end
    end
  end
  local from = before and '(' .. before or '-'
  if size > limit then count, bytes, before = 0, 0, nil end
  while count > 0 and (count >= most or bytes + size > limit) do
    local oldest = call('XRANGE', stream, from, '+', 'COUNT', 1)[1]
    if not oldest then
      count, bytes = 0, 0
    else
      count, bytes = count - 1, bytes - cost(oldest[2][2])
      before, from = oldest[1], '(' .. oldest[1]
    end
  end
  if size <= limit then
    count, bytes = count + 1, bytes + size
    local add = {'XADD', stream, 'MAXLEN', count, id, 'd', ARGV[2]}
    local answer = is_broken and added or redis.pcall(unpack(add))
    if type(answer) == 'table' and answer.err then
      if string.find(answer.err, 'smaller') then
        -- The end of the record was lost, but not that of the stream: as above. Offsets go on,
        -- since nodes' fields have them.
        epoch, count, bytes, before = ARGV[6], 1, size, nil
        call('DEL', stream)
      end
      call(unpack(add))
    end
  else
    -- It is not kept, nor is what came before it: who has not got it cannot get all that follows.
    call('DEL', stream)
  end
  call('HSET', record, 'e', epoch, 's', at, 't', ARGV[3], field, number,
    'l', at .. ' ' .. (large or ''), 'k', string.format('%s %d %d', at, count, bytes))
  if before or is_new or size > limit then call('HSET', record, 'b', before or '') end
end
if ARGV[12] == '1' or not is_usual then
  call('PEXPIRE', stream, ARGV[5])
  call('PEXPIRE', record, ARGV[5] + 3600000)
end
call('PUBLISH', ARGV[1],
  epoch .. ':' .. at .. ':' .. ARGV[3] .. (KEYS[3] and '+' or ' ') .. ARGV[2])
return 1
