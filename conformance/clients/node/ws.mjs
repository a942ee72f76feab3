// Node's ws against the server: node ws.mjs 127.0.0.1:9001
import { once } from 'node:events';
import net from 'node:net';
import tls from 'node:tls';
import { randomBytes } from 'node:crypto';
import WebSocket from 'ws';
import { check, runChecks, same } from './checks.mjs';

const server = process.argv[2];
const version = process.env.THRONG_TLS;
const secure = version ? 's' : '';
// For ws, fetch and sockets alike.
if (version) tls.DEFAULT_MAX_VERSION = `TLSv${version}`;
const transport = secure ? tls : net;
const [host, port] = server.split(':');

/** An open connection, with everything that comes kept in order for `next`. */
async function open(path = '/echo', options = {}) {
  const socket = new WebSocket(`ws${secure}://${server}${path}`, options);
  const arrived = [];
  const waiting = [];
  const arrive = (item) => (waiting.length > 0 ? waiting.shift()(item) : arrived.push(item));
  socket.on('message', (data, binary) => arrive({ data, binary }));
  socket.closed = new Promise((resolve) => {
    socket.on('close', (code, reason) => {
      resolve({ code, reason: reason.toString() });
      arrive({ closed: code });
    });
  });
  socket.next = () =>
    arrived.length > 0 ? Promise.resolve(arrived.shift()) : new Promise((resolve) => waiting.push(resolve));
  await once(socket, 'open');
  return socket;
}

async function close(socket) {
  socket.close(1000);
  await socket.closed;
}

async function echoes(socket, payload, binary) {
  socket.send(payload, { binary });
  const answer = await socket.next();
  if (answer.closed) throw new Error(`the server closed with ${answer.closed}`);
  same(answer.binary, binary, 'kind');
  if (!answer.data.equals(Buffer.from(payload))) {
    throw new Error(`${answer.data.length} bytes came back for ${Buffer.byteLength(payload)}, or others`);
  }
}

/** Sends raw bytes and resolves with all that comes back until the server closes or `enough` says so. */
function raw(request, enough = (text) => text.includes('\r\n\r\n')) {
  return new Promise((resolve, reject) => {
    const socket = transport.connect(Number(port), host, () => socket.write(request));
    let text = '';
    socket.on('data', (data) => {
      text += data.toString('latin1');
      if (enough(text)) {
        resolve(text);
        socket.destroy();
      }
    });
    socket.on('end', () => resolve(text));
    socket.on('error', reject);
  });
}

/** An upgrade request as raw text; a header set to null is left out. */
function upgrade(changes = {}, line = 'GET /echo HTTP/1.1') {
  const headers = {
    Host: server,
    Connection: 'Upgrade',
    Upgrade: 'websocket',
    'Sec-WebSocket-Version': '13',
    'Sec-WebSocket-Key': 'dGhlIHNhbXBsZSBub25jZQ==',
    ...changes,
  };
  const lines = Object.entries(headers).filter(([, value]) => value !== null);
  return `${line}\r\n${lines.map(([name, value]) => `${name}: ${value}\r\n`).join('')}\r\n`;
}

const statusOf = (response) => Number(response.match(/^HTTP\/1\.[01] (\d{3})/)?.[1] ?? 0);

check('text, binary, empty and 1 MiB messages come back', async () => {
  const socket = await open();
  await echoes(socket, 'Hello, 世界 🦀', false);
  await echoes(socket, Buffer.from(Array.from({ length: 256 }, (_, byte) => byte)), true);
  await echoes(socket, '', false);
  await echoes(socket, Buffer.alloc(0), true);
  for (const length of [125, 126, 127, 65535, 65536, 1 << 20]) {
    await echoes(socket, randomBytes(length), true);
    await echoes(socket, 'é'.repeat(length >> 1), false);
  }
  await close(socket);
});

check('a fragmented message comes back whole, with a ping between its frames', async () => {
  const socket = await open();
  socket.send('one ', { fin: false });
  socket.send('two ', { fin: false });
  const ponged = once(socket, 'pong');
  socket.ping('in between');
  socket.send('three', { fin: true });
  same((await ponged)[0].toString(), 'in between', 'pong');
  same((await socket.next()).data.toString(), 'one two three', 'message');
  await close(socket);
});

check('a ping is answered with its own payload', async () => {
  const socket = await open();
  for (const payload of ['', 'ping', 'x'.repeat(125)]) {
    const ponged = once(socket, 'pong');
    socket.ping(payload);
    same((await ponged)[0].toString(), payload, 'pong');
  }
  socket.pong('unasked');
  await echoes(socket, 'still here', false);
  await close(socket);
});

check('the close code of the client comes back', async () => {
  for (const [code, reason] of [[1000, 'done'], [1001, ''], [3000, 'library'], [4999, 'application é']]) {
    const socket = await open();
    socket.close(code, reason);
    same((await socket.closed).code, code, 'code');
  }
  const socket = await open();
  socket.close();
  same((await socket.closed).code, 1005, 'no code');
});

check('what breaks a rule is closed with its code', async () => {
  const breaks = [
    ['bad UTF-8', 1007, (socket) => socket.send(Buffer.from([0x48, 0xff, 0x49]), { binary: false })],
    ['over the message limit', 1009, (socket) => socket.send(Buffer.alloc((4 << 20) + 1))],
    ['a fragment that continues nothing', 1002, (socket) => socket._socket.write(Buffer.from([0x80, 0x80, 1, 2, 3, 4]))],
    ['an unmasked frame', 1002, (socket) => socket._socket.write(Buffer.from([0x81, 0x01, 0x61]))],
    ['a reserved opcode', 1002, (socket) => socket._socket.write(Buffer.from([0x83, 0x80, 1, 2, 3, 4]))],
    ['a reserved bit', 1002, (socket) => socket._socket.write(Buffer.from([0xc1, 0x80, 1, 2, 3, 4]))],
    ['a 64-bit length with its top bit set', 1002, (socket) =>
      socket._socket.write(Buffer.from([0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]))],
  ];
  for (const [what, code, breakRule] of breaks) {
    const socket = await open();
    socket.on('error', () => {});
    breakRule(socket);
    same((await socket.closed).code, code, what);
  }
});

check('10,000 pipelined messages come back in order', async () => {
  const socket = await open();
  const count = 10_000;
  for (let number = 0; number < count; number += 1) socket.send(String(number));
  for (let number = 0; number < count; number += 1) {
    const { data, closed } = await socket.next();
    if (closed) throw new Error(`closed with ${closed} after ${number} messages`);
    if (data.toString() !== String(number)) throw new Error(`expected ${number}, got ${data}`);
  }
  await close(socket);
});

check('no extension and no subprotocol is chosen', async () => {
  const socket = await open();
  same([socket.extensions, socket.protocol], ['', ''], 'chosen');
  await close(socket);
  const response = await raw(upgrade({
    'Sec-WebSocket-Protocol': 'chat, superchat',
    'Sec-WebSocket-Extensions': 'permessage-deflate; client_max_window_bits',
  }));
  same(statusOf(response), 101, 'status');
  same(/^sec-websocket-(protocol|extensions):/im.test(response), false, 'a choice was made');
  same(/^sec-websocket-accept: *s3pPLMBiTxaQ9kYGzzhZRbK\+xOo=\r$/im.test(response), true, 'accept key');
});

check('a bad upgrade is refused with its status', async () => {
  const refusals = [
    ['no key', upgrade({ 'Sec-WebSocket-Key': null }), [400]],
    ['a key of the wrong length', upgrade({ 'Sec-WebSocket-Key': 'c2hvcnQ=' }), [400]],
    ['two keys', upgrade({ 'sec-websocket-key': 'dGhlIHNhbXBsZSBub25jZQ==' }), [400]],
    ['version 12', upgrade({ 'Sec-WebSocket-Version': '12' }), [426]],
    ['no version', upgrade({ 'Sec-WebSocket-Version': null }), [400, 426]],
    ['no Host', upgrade({ Host: null }), [400]],
    ['POST', upgrade({ 'Content-Length': '0' }, 'POST /echo HTTP/1.1'), [400, 405]],
    ['HTTP/1.0', upgrade({}, 'GET /echo HTTP/1.0'), [400, 426, 505]],
    ['an unknown path', upgrade({}, 'GET /nowhere HTTP/1.1'), [404]],
    ['no upgrade at all', `GET /echo HTTP/1.1\r\nHost: ${server}\r\n\r\n`, [400, 426]],
    ['no HTTP at all', 'hello there\r\n\r\n', [400]],
    ['a header of 64 KiB', upgrade({ 'X-Long': 'x'.repeat(65536) }), [431]],
  ];
  for (const [what, request, statuses] of refusals) {
    const response = await raw(request);
    const status = statusOf(response);
    if (!statuses.includes(status)) throw new Error(`${what}: status ${status}, not ${statuses.join(' or ')}`);
    if (what === 'version 12') same(/^sec-websocket-version: *13\r$/im.test(response), true, 'names version 13');
  }
});

check('an upgrade and a first frame may come in one write, or byte by byte', async () => {
  const frame = Buffer.from([0x81, 0x82, 0, 0, 0, 0, 0x68, 0x69]).toString('latin1');
  const request = Buffer.from(upgrade() + frame, 'latin1');
  const echoed = (text) => text.endsWith('\x81\x02hi');
  same(statusOf(await raw(request, echoed)), 101, 'one write');
  const text = await new Promise((resolve, reject) => {
    const socket = transport.connect(Number(port), host, async () => {
      socket.setNoDelay(true);
      for (const byte of request) {
        socket.write(Buffer.from([byte]));
        await new Promise(setImmediate);
      }
    });
    let all = '';
    socket.on('data', (data) => {
      all += data.toString('latin1');
      if (echoed(all)) {
        resolve(all);
        socket.destroy();
      }
    });
    socket.on('end', () => reject(new Error(`the server ended: ${all}`)));
    socket.on('error', reject);
  });
  same(statusOf(text), 101, 'byte by byte');
});

check('a channel reaches its other members, and the sender on request', async () => {
  const [ann, bob, eve, other] = await Promise.all([
    open('/ws/room-1'), open('/ws/room-1'), open('/ws/room-1?echo=1'), open('/ws/room-2'),
  ]);
  ann.send('from ann');
  same((await bob.next()).data.toString(), 'from ann', 'bob');
  same((await eve.next()).data.toString(), 'from ann', 'eve');
  const bytes = randomBytes(100_000);
  eve.send(bytes);
  for (const member of [ann, bob, eve]) {
    const { data, binary } = await member.next();
    same([binary, data.equals(bytes)], [true, true], 'binary publication');
  }
  // Whoever should not have got something would have got it before this, in order.
  other.send('only room 2');
  bob.send('last');
  same((await ann.next()).data.toString(), 'last', 'ann has not heard herself');
  same((await eve.next()).data.toString(), 'last', 'eve');
  const late = await open('/ws/room-2');
  late.send('late');
  same((await other.next()).data.toString(), 'late', 'room 2 has heard nothing of room 1');
  await Promise.all([ann, bob, eve, other, late].map(close));
});

check('10,000 publications to a channel arrive in order', async () => {
  const [from, to] = await Promise.all([open('/ws/burst'), open('/ws/burst')]);
  for (let number = 0; number < 10_000; number += 1) from.send(String(number));
  for (let number = 0; number < 10_000; number += 1) {
    const { data, closed } = await to.next();
    if (closed) throw new Error(`closed with ${closed} after ${number} messages`);
    if (data.toString() !== String(number)) throw new Error(`expected ${number}, got ${data}`);
  }
  await Promise.all([from, to].map(close));
});

check('the server tells how it is', async () => {
  for (const path of ['/livez', '/readyz', '/metrics', '/']) {
    const response = await fetch(`http${secure}://${server}${path}`);
    same(response.status, 200, path);
    if (path === '/metrics') same((await response.text()).includes('# TYPE '), true, 'metrics have types');
    if (path === '/') same(response.headers.get('content-type')?.startsWith('text/html'), true, 'a page');
  }
  same((await fetch(`http${secure}://${server}/nowhere`)).status, 404, 'an unknown path');
});

if (version) {
  check('the version of TLS is the one that was offered', async () => {
    const socket = await open();
    same(socket._socket.getProtocol(), `TLSv${version}`);
    await close(socket);
  });
}

await runChecks();
