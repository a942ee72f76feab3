// Echo at any path, broadcast at /ws/...: bun server.js PORT [deflate|context|tls CERT KEY]
const MiB = 1024 * 1024;
const secure = process.argv[3] === "tls";
const compress = process.argv.length > 3 && !secure;
const codec = process.argv[3] === "context" ? "dedicated" : "shared";

Bun.serve({
  hostname: "127.0.0.1",
  port: Number(process.argv[2]),
  tls: secure ? { cert: Bun.file(process.argv[4]), key: Bun.file(process.argv[5]) } : undefined,
  fetch(request, server) {
    const path = new URL(request.url).pathname;
    const data = path.startsWith("/ws/") ? path : null;
    if (server.upgrade(request, { data })) return;
    return new Response("WebSocket only", { status: 426 });
  },
  websocket: {
    perMessageDeflate: compress && { compress: codec, decompress: codec },
    maxPayloadLength: 64 * MiB,
    backpressureLimit: 256 * MiB,
    idleTimeout: 600,
    open(ws) {
      if (ws.data) ws.subscribe(ws.data);
    },
    message(ws, message) {
      if (ws.data) ws.publish(ws.data, message, compress);
      else ws.send(message, compress);
    },
  },
});
