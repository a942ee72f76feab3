// A chat with rooms, as crates/server/examples/chat.rs: node chat.js PORT
import { createServer } from "node:http";
import { WebSocketServer } from "ws";

const rooms = new Map();
const wss = new WebSocketServer({ noServer: true, maxPayload: 16 << 10 });

function open(ws, name, room) {
  const members = rooms.get(room) ?? new Set();
  rooms.set(room, members.add(ws));
  ws.on("error", () => {});
  ws.on("message", (data, isBinary) => {
    if (isBinary) return ws.close(1003, "text only");
    for (const member of members) member.send(`${name}: ${data}`);
  });
  ws.on("close", () => {
    members.delete(ws);
    if (members.size === 0 && rooms.get(room) === members) rooms.delete(room);
  });
}

const server = createServer((request, response) => response.writeHead(404).end());
server.on("upgrade", (request, socket, head) => {
  const url = new URL(request.url, "http://localhost");
  const [, room] = url.pathname.match(/^\/chat\/([^/]+)$/) ?? [];
  if (!room) return socket.end("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
  const name = url.searchParams.get("name") ?? "anonymous";
  wss.handleUpgrade(request, socket, head, (ws) => open(ws, name, room));
});
server.listen(Number(process.argv[2]), "127.0.0.1");
