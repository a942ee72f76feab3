// Rooms that move on 30 times a second, as crates/server/examples/game.rs: node game.js PORT
import { createServer } from "node:http";
import { WebSocketServer } from "ws";

const TICK = 1000 / 30;
const KEPT = 90;
const MAX_BACKLOG = 64 << 10;
const rooms = new Map();
let tick = 0;

const wss = new WebSocketServer({ noServer: true, maxPayload: 64 });

function open(ws, roomName, name) {
  const room = rooms.get(roomName) ?? new Map();
  rooms.set(roomName, room);
  const player = room.get(name) ?? { at: 0, step: 0, device: null, seen: 0 };
  room.set(name, player);
  player.device?.close(4001, "you play on another device");
  player.device = ws;
  ws.on("error", () => {});
  ws.on("message", (data, isBinary) => {
    if (player.device !== ws) return;
    const text = isBinary ? "" : data.toString();
    player.step = text === "left" ? -1 : text === "right" ? 1 : 0;
  });
  ws.on("close", () => {
    if (player.device === ws) player.device = null;
  });
}

function move() {
  tick += 1;
  for (const [roomName, room] of rooms) {
    for (const [name, player] of room) {
      player.at += player.step;
      if (player.device) player.seen = tick;
      if (tick - player.seen >= KEPT) room.delete(name);
    }
    if (room.size === 0) rooms.delete(roomName);
    const names = [...room.keys()].sort();
    const state = `${tick}${names.map((name) => ` ${name}:${room.get(name).at}`).join("")}`;
    for (const { device } of room.values()) {
      // Who reads slowly misses states.
      if (device && device.bufferedAmount < MAX_BACKLOG) device.send(state);
    }
  }
}

const server = createServer((request, response) => response.writeHead(404).end());
server.on("upgrade", (request, socket, head) => {
  const url = new URL(request.url, "http://localhost");
  const [, room] = url.pathname.match(/^\/rooms\/([^/]+)$/) ?? [];
  const name = url.searchParams.get("name");
  const refusal = !room ? "404 Not Found" : !name ? "400 Bad Request" : null;
  if (refusal) return socket.end(`HTTP/1.1 ${refusal}\r\nContent-Length: 0\r\n\r\n`);
  wss.handleUpgrade(request, socket, head, (ws) => open(ws, room, name));
});
server.listen(Number(process.argv[2]), "127.0.0.1");

let next = performance.now();
(function run() {
  move();
  next += TICK;
  setTimeout(run, Math.max(0, next - performance.now()));
})();
