-- Returns members of a channel. Those of a node that does not live are among them
-- until it is removed: their leaves are still to come.
-- KEYS: the channel's nodes, the number of the server's data.
-- ARGV: the node whose own members are left out, channel, the beginning of all names, most members,
--       most bytes.
-- Returns: the number of the data; that of all members; node, client and information of each one
--          that is listed.
local all, list, bytes, most = 0, {}, 0, tonumber(ARGV[4])
for _, node in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if node ~= ARGV[1] then
    local key = ARGV[3] .. '.p.' .. node .. '.' .. ARGV[2]
    all = all + redis.call('HLEN', key)
    local room = most - #list / 3
    -- A few at a time could be the same ones: this asks for different ones. Their information, which
    -- has no bound, is read a few at a time.
    local some = room > 0 and redis.call('HRANDFIELD', key, room) or {}
    for first = 1, #some, 16 do
      local last = math.min(first + 15, #some)
      for at, info in ipairs(redis.call('HMGET', key, unpack(some, first, last))) do
        bytes = bytes + 100 + #info
        if bytes > tonumber(ARGV[5]) then
          most = 0
          break
        end
        list[#list + 1] = node
        list[#list + 1] = some[first + at - 1]
        list[#list + 1] = info
      end
      if most == 0 then break end
    end
  end
end
return {redis.call('GET', KEYS[2]) or '', all, list}
