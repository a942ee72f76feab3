// Chromium's own WebSocket and EventSource, and the page at /: node chromium.mjs 127.0.0.1:9001 /usr/bin/chromium
import { isAccessible, openTab, startBrowser } from './browser.mjs';
import { check, runChecks, same, within } from './checks.mjs';

const [server, executablePath] = process.argv.slice(2);
const version = process.env.THRONG_TLS;
const secure = version ? 's' : '';
const { browser, finish } = await startBrowser(executablePath, version ? [`--ssl-version-max=tls${version}`] : []);

/** A tab with the server's page. */
const openPage = () => openTab(browser, `http${secure}://${server}/`);

async function joinChannel(page, channel) {
  await page.fill('#channel', channel);
  await page.click('#join');
  await page.waitForFunction(() => document.querySelector('#status').textContent.trim() === 'connected');
}

async function say(page, text) {
  await page.fill('#message', text);
  await page.click('#send');
}

/** The number of connections that the page shows, once it is `wanted`. It may name the limit after a slash. */
async function connections(page, wanted) {
  const deadline = Date.now() + 10_000;
  for (;;) {
    const text = await page.textContent('#connections');
    const number = Number(text.split('/')[0].replace(/[^0-9]/g, ''));
    if (wanted(number)) return number;
    if (Date.now() > deadline) throw new Error(`#connections says ${text}`);
    await page.waitForTimeout(100);
  }
}

const hears = (page, text) => page.waitForSelector(`#log li:has-text("${text}")`, { timeout: 10_000 });

/** Runs a function with an open WebSocket to `path` inside the browser. */
async function inBrowser(path, body, argument) {
  const page = await browser.newPage();
  try {
    await page.goto(`http${secure}://${server}/livez`);
    return await page.evaluate(
      async ([url, source, argument]) => {
        const socket = new WebSocket(url);
        socket.binaryType = 'arraybuffer';
        const arrived = [];
        const waiting = [];
        socket.onmessage = ({ data }) => (waiting.length > 0 ? waiting.shift()(data) : arrived.push(data));
        const next = () =>
          arrived.length > 0 ? Promise.resolve(arrived.shift()) : new Promise((resolve) => waiting.push(resolve));
        const closed = new Promise((resolve) => {
          socket.onclose = ({ code, reason, wasClean }) => resolve({ code, reason, wasClean });
        });
        await new Promise((resolve, reject) => {
          socket.onopen = resolve;
          socket.onerror = () => reject(new Error('the browser could not connect'));
        });
        const run = new Function(`return ${source}`)();
        return await run({ socket, next, closed, argument });
      },
      [`ws${secure}://${server}${path}`, body.toString(), argument],
    );
  } finally {
    await page.close();
  }
}

if (version) {
  check('the version of TLS is the one that was offered', async () => {
    const page = await browser.newPage();
    const { protocol } = await (await page.goto(`https://${server}/livez`)).securityDetails();
    same(protocol, `TLS ${version}`);
    await page.close();
  });
}

check('text, binary, empty and 1 MiB messages come back', async () => {
  const wrong = await inBrowser('/echo', async ({ socket, next }) => {
    const bytes = (length) => Uint8Array.from({ length }, (_, index) => index * 7);
    const payloads = ['Hello, 世界 🦀', '', bytes(0), bytes(256), bytes(65536), bytes(1 << 20), 'é'.repeat(1 << 19)];
    for (const [index, payload] of payloads.entries()) {
      socket.send(payload);
      const answer = await next();
      const fine =
        typeof payload === 'string'
          ? answer === payload
          : answer.byteLength === payload.length && new Uint8Array(answer).every((byte, at) => byte === payload[at]);
      if (!fine) return `payload ${index}`;
    }
    return null;
  });
  same(wrong, null, 'came back wrong');
});

check('10,000 pipelined messages come back in order', async () => {
  const wrong = await inBrowser('/echo', async ({ socket, next }) => {
    for (let number = 0; number < 10_000; number += 1) socket.send(String(number));
    for (let number = 0; number < 10_000; number += 1) {
      const answer = await next();
      if (answer !== String(number)) return `expected ${number}, got ${answer}`;
    }
    return null;
  });
  same(wrong, null, 'order');
});

check('close codes, both ways', async () => {
  for (const [code, reason] of [[1000, 'done'], [3000, ''], [4999, 'application é']]) {
    const close = ({ socket, closed, argument: [code, reason] }) => {
      socket.close(code, reason);
      return closed;
    };
    const { code: answered, wasClean } = await inBrowser('/echo', close, [code, reason]);
    same([answered, wasClean], [code, true], `close ${code}`);
  }
  const tooBig = await inBrowser('/echo', ({ socket, closed }) => {
    socket.send(new Uint8Array((4 << 20) + 1));
    return closed;
  });
  same(tooBig.code, 1009, 'over the message limit');
});

check('an unknown path is refused', async () => {
  const refused = await inBrowser('/nowhere', () => 'open').catch((error) => error.message);
  same(refused.includes('could not connect'), true, refused);
});

check('an EventSource gets what is published to its channel', async () => {
  const page = await browser.newPage();
  await page.goto(`http${secure}://${server}/livez`);
  const [heard, states] = await page.evaluate(async (url) => {
    const source = new EventSource('/sse/sse%20test');
    const arrived = [];
    const waiting = [];
    const arrive = (event) => (waiting.length > 0 ? waiting.shift()(event) : arrived.push(event));
    const next = () =>
      arrived.length > 0 ? Promise.resolve(arrived.shift()) : new Promise((resolve) => waiting.push(resolve));
    source.onmessage = ({ data }) => arrive(data);
    source.addEventListener('binary', ({ data }) => arrive(Uint8Array.from(atob(data), (byte) => byte.charCodeAt(0))));
    await new Promise((resolve, reject) => {
      source.onopen = resolve;
      source.onerror = () => reject(new Error('the browser could not connect'));
    });
    const socket = new WebSocket(url);
    await new Promise((resolve) => (socket.onopen = resolve));
    const payloads = ['one line', 'two\nlines', '', ' leading blank, häuser 🦀', 'data: x\n\nevent: y', new Uint8Array([0, 127, 255]), 'é'.repeat(1 << 17)];
    const heard = [];
    for (const payload of payloads) {
      socket.send(payload);
      const data = await next();
      heard.push(typeof payload === 'string' ? data === payload : [...data].join() === [...payload].join());
    }
    socket.close();
    const open = source.readyState;
    source.close();
    return [heard, [open, source.readyState]];
  }, `ws${secure}://${server}/ws/sse%20test`);
  same(heard, heard.map(() => true), 'events');
  same(states, [1, 2], 'open, and closed when the page closes it');
  await page.close();
});

check('an EventSource is refused with a status', async () => {
  const page = await browser.newPage();
  await page.goto(`http${secure}://${server}/livez`);
  const state = await page.evaluate(
    (long) =>
      new Promise((resolve) => {
        const source = new EventSource(`/sse/${long}`);
        source.onopen = () => resolve('open');
        source.onerror = () => resolve(source.readyState);
      }),
    'x'.repeat(257),
  );
  same(state, 2, 'closed, and not to come back');
  await page.close();
});

check('the page joins a channel, sends and shows', async () => {
  const [ann, bob] = [await openPage(), await openPage()];
  const channel = 'page-test';
  await joinChannel(ann, channel);
  await joinChannel(bob, channel);
  await say(ann, 'hello from ann');
  await hears(bob, 'hello from ann');
  await say(bob, 'and <b>bob</b> & "quotes"');
  await hears(ann, 'and <b>bob</b> &');
  same(await ann.locator('#log b').count(), 0, 'what others write is text, not markup');
  // The figures are a second old at most, and a page's own requests for them are connections, too: only when the number
  // has had the time to come to rest does the end of one page lower it.
  await ann.waitForTimeout(3000);
  const both = await connections(ann, (number) => number >= 2);
  await ann.waitForFunction(() => /\d/.test(document.querySelector('#messages-per-second').textContent));
  same([...ann.complaints, ...bob.complaints], [], 'complaints of the page');
  // A page that goes away is no longer counted.
  await bob.close();
  await connections(ann, (number) => number < both);
  await ann.close();
});

check('the page leaves one channel when it joins another', async () => {
  const [ann, bob] = [await openPage(), await openPage()];
  await joinChannel(ann, 'first');
  await joinChannel(bob, 'second');
  await joinChannel(ann, 'second');
  await say(ann, 'now here');
  await hears(bob, 'now here');
  await Promise.all([ann.close(), bob.close()]);
});

check('the page is accessible and fits from 320 to 2,560 pixels, light and dark', async () => {
  const page = await openPage();
  await joinChannel(page, 'accessible');
  await say(page, 'without-a-space-to-break-at-'.repeat(20));
  await hears(page, 'without-a-space');
  await isAccessible(page, () => {
    document.querySelector('#connections').textContent = '1,000,000 / 1.1M';
  });
  await page.close();
});

await within(240_000, runChecks(finish)).catch(async (error) => {
  console.log(`FAILED chromium: ${error.message}`);
  process.exit(1);
});
