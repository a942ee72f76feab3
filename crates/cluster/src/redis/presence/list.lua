-- Returns members of a channel on other nodes. Those of a node that does not live are among them
-- until it is buried: their leaves are still to come.
-- KEYS: the channel's nodes.
-- ARGV: the node that asks, channel, the beginning of all names, most members, most bytes.
-- Returns: the number of all of them; node, client and information of each one that is listed.
local all, list, bytes, most = 0, {}, 0, tonumber(ARGV[4])
for _, node in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if node ~= ARGV[1] then
    local key = ARGV[3] .. '.p.' .. node .. '.' .. ARGV[2]
    all = all + redis.call('HLEN', key)
    local room = most - #list / 3
    -- A few at a time could be the same ones: this asks for different ones.
    local some = room > 0 and redis.call('HRANDFIELD', key, room, 'WITHVALUES') or {}
    for at = 1, #some, 2 do
      bytes = bytes + 100 + #some[at + 1]
      if bytes > tonumber(ARGV[5]) then
        most = 0
        break
      end
      list[#list + 1] = node
      list[#list + 1] = some[at]
      list[#list + 1] = some[at + 1]
    end
  end
end
return {all, list}
