// Echo at any path, broadcast at /ws/...: node server.js PORT [deflate|context]
const { WebSocketServer } = require("ws");

const channels = new Map();

const server = new WebSocketServer({
  host: "127.0.0.1",
  port: Number(process.argv[2]),
  backlog: 4096,
  perMessageDeflate: process.argv.length > 3 && {
    serverNoContextTakeover: process.argv[3] === "deflate",
    clientNoContextTakeover: process.argv[3] === "deflate",
    threshold: 0,
  },
  maxPayload: 64 * 1024 * 1024,
});

server.on("connection", (ws, request) => {
  ws.on("error", () => {}); // a reset by the client ends only that connection
  if (!request.url.startsWith("/ws/")) {
    ws.on("message", (data, binary) => ws.send(data, { binary }));
    return;
  }
  if (!channels.has(request.url)) channels.set(request.url, new Set());
  const members = channels.get(request.url);
  members.add(ws);
  ws.on("close", () => members.delete(ws));
  ws.on("message", (data, binary) => {
    for (const member of members) if (member !== ws) member.send(data, { binary });
  });
});
