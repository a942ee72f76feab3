-- Gives a publication its place in the channel's sequence, keeps it, and delivers it.
-- KEYS: the channel's record, its stream; for a publication that was delivered without a place, a
--       mark of it.
-- ARGV: channel, publication, tag, the node's field, the number of the publication among the
--       node's, publications kept plus one, bytes of the largest small publication, 'EPOCH AGE
--       BYTES': an epoch for a new sequence, time kept (ms), bytes kept. Only where it matters: the
--       number of the publication that must have come before it, or '0'; 'renew' if the time begins
--       again now, 'again' if also the publication was sent before: the connection of that time is
--       closed.
-- Returns: 1; 0 if it was there; -1 if the one before it is not there, so it was left out.
-- Each argument costs a hundredth of a publication's time, so what is seldom needed shares one.
local KEYS, ARGV = KEYS, ARGV
local record, stream, call, publication = KEYS[1], KEYS[2], redis.call, ARGV[2]
local tag, field, previous, how = ARGV[3], ARGV[4], ARGV[9], ARGV[10]
local known = call('HMGET', record, 'e', 'p', field)
-- A node's field: its last publication that was taken, and the offset that it got.
local epoch, place, taken = known[1], known[2], known[3]
local is_new, offset, last_tag, large = not (epoch and place), '0', '0', ''
-- The last place, and the offset of the last large publication.
if not is_new then offset, last_tag, large = string.match(place, '^(%d+) (%d+) (%d*)$') end
if previous then
  local done = taken and tonumber(string.match(taken, '^%d+')) or 0
  if how == 'again' and done >= tonumber(ARGV[5]) then return 0 end
  if tonumber(previous) > done then return -1 end
end
if KEYS[3] and not call('SET', KEYS[3], '', 'NX', 'PX', 60000) then
  -- Another node was first.
  call('HSET', record, field, ARGV[5] .. ':' .. offset)
  return 0
end
if not is_new and not taken and call('HLEN', record) > 400 then
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
local size = #publication + 128
local top = offset + 1
local at = string.format('%d', top)
local id, number = at .. '-' .. tag, ARGV[5] .. ':' .. at
-- As many small ones as are kept fit, so bytes are counted only while a large one may be among
-- them. One more of these is kept, which proves the place before the others.
if size > tonumber(ARGV[7]) then large = at end
local added = false
if not is_new and (large == '' or top - large >= tonumber(ARGV[6])) then
  -- A stream is shortened by whole blocks of a hundred, so it need not be looked at each time.
  if top % 16 == 0 then
    added = redis.pcall('XADD', stream, 'NOMKSTREAM', 'MAXLEN', '~', ARGV[6], id, 'd', publication)
  else
    added = redis.pcall('XADD', stream, 'NOMKSTREAM', id, 'd', publication)
  end
end
local is_usual = type(added) == 'string'
local fresh, age, limit
if not is_usual or how then fresh, age, limit = string.match(ARGV[8], '^(%x+) (%d+) (%d+)$') end
if is_usual then
  call('HSET', record, 'p', at .. ' ' .. tag .. ' ' .. large, field, number)
else
  -- The place before the first publication that is kept, which nodes may be at; publications that
  -- are kept, and their bytes.
  local function cost(publication) return #publication + 128 end
  local most, before, count, bytes = tonumber(ARGV[6]) - 1, nil, 0, 0
  limit = tonumber(limit)
  local is_broken = type(added) == 'table' and added.err
  if is_broken and not string.find(is_broken, 'smaller') then return added end
  if is_new then
    -- The record was lost: what is left belongs to no sequence that can be continued.
    epoch = fresh
    call('DEL', stream)
  elseif not is_broken then
    if call('EXISTS', stream) == 0 then
      -- The history has expired.
      if offset ~= '0' then before = offset .. '-' .. last_tag end
    else
      local counted, some, sum = string.match(
        call('HGET', record, 'k') or '', '^(%d+) (%d+) (%d+)$')
      if counted == offset then
        count, bytes = tonumber(some), tonumber(sum)
      else
        local from = '+'
        while not before do
          local entry = call('XREVRANGE', stream, from, '-', 'COUNT', 1)[1]
          if not entry then break end
          if count >= most or bytes + cost(entry[2][2]) > limit then
            before = entry[1]
          else
            count, bytes, from = count + 1, bytes + cost(entry[2][2]), '(' .. entry[1]
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
    local add = {'XADD', stream, 'MAXLEN', count, id, 'd', publication}
    local answer = is_broken and added or redis.pcall(unpack(add))
    if type(answer) == 'table' and answer.err then
      if string.find(answer.err, 'smaller') then
        -- The end of the record was lost, but not that of the stream: as above. Offsets go on,
        -- since nodes' fields have them.
        epoch, count, bytes, before = fresh, 1, size, nil
        call('DEL', stream)
      end
      call(unpack(add))
    end
  else
    -- It is not kept, nor is what came before it: who has not got it cannot get all that follows.
    call('DEL', stream)
  end
  call('HSET', record, 'e', epoch, 'p', at .. ' ' .. tag .. ' ' .. large, field, number,
    'k', string.format('%s %d %d', at, count, bytes))
  if before or is_new or size > limit then call('HSET', record, 'b', before or '') end
end
if age then
  call('PEXPIRE', stream, age)
  call('PEXPIRE', record, age + 3600000)
end
local kind = KEYS[3] and '+' or ' '
call('PUBLISH', ARGV[1], epoch .. ':' .. at .. ':' .. tag .. kind .. publication)
return 1
