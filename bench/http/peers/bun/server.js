// Blank or work on Bun.serve (uWebSockets inside): bun server.js PORT blank|work
const { answer } = require("../node/work.js");

const blank = { headers: { "Content-Type": "text/plain" } };
const json = { headers: { "Content-Type": "application/json" } };

Bun.serve({
  hostname: "127.0.0.1",
  port: Number(process.argv[2]),
  idleTimeout: 75,
  fetch:
    process.argv[3] === "work"
      ? async (request) => {
          try {
            return new Response(answer(await request.text()), json);
          } catch (error) {
            return new Response(String(error), { status: 400 });
          }
        }
      : () => new Response("OK", blank),
});
