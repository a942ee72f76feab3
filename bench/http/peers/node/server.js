// Blank or work on node:http, one process: node server.js PORT blank|work. It runs under bun, too.
const http = require("node:http");
const { answer } = require("./work.js");

const work = process.argv[3] === "work";

const server = http.createServer((request, response) => {
  if (!work) {
    response.writeHead(200, { "Content-Type": "text/plain", "Content-Length": 2 });
    response.end("OK");
    return;
  }
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    try {
      const body = answer(parts.length === 1 ? parts[0] : Buffer.concat(parts));
      response.writeHead(200, { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(body) });
      response.end(body);
    } catch (error) {
      response.writeHead(400, { "Content-Type": "text/plain" });
      response.end(String(error));
    }
  });
});
server.keepAliveTimeout = 75_000;
server.listen({ host: "127.0.0.1", port: Number(process.argv[2]), backlog: 4096 });
