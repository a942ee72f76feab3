// The client centrifuge against the server: node centrifuge.mjs 127.0.0.1:9001
import { createHmac } from 'node:crypto';
import { once as onceOf } from 'node:events';
import { Centrifuge } from 'centrifuge';
import { Centrifuge as ProtobufCentrifuge } from 'centrifuge/build/protobuf';
import WebSocket from 'ws';
import { check, runChecks, same } from './checks.mjs';

const url = `ws://${process.argv[2]}/connection/websocket`;
const secret = process.env.THRONG_TOKEN_SECRET;

/** A token with these claims. */
function sign(claims) {
  const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const signed = `${part({ alg: 'HS256', typ: 'JWT' })}.${part(claims)}`;
  return `${signed}.${createHmac('sha256', secret).update(signed).digest('base64url')}`;
}

const inSeconds = (seconds) => Math.floor(Date.now() / 1000) + seconds;

/** Everything, for this user. */
const all = (user, more = {}) => sign({ sub: user, join: '>', publish: '>', history: '>', ...more });

/** Resolves with the context of the next event. */
const once = (emitter, event) => new Promise((resolve) => emitter.once(event, resolve));

/** The events of an emitter in order, for `next`. */
function events(emitter, event) {
  const arrived = [];
  const waiting = [];
  emitter.on(event, (context) => (waiting.length > 0 ? waiting.shift()(context) : arrived.push(context)));
  return () => (arrived.length > 0 ? Promise.resolve(arrived.shift()) : new Promise((resolve) => waiting.push(resolve)));
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();

const encodings = [
  { name: 'JSON', Client: Centrifuge, write: (value) => value, read: (data) => data },
  {
    name: 'Protobuf',
    Client: ProtobufCentrifuge,
    write: (value) => encoder.encode(JSON.stringify(value)),
    read: (data) => JSON.parse(decoder.decode(data)),
  },
];

for (const { name, Client, write, read } of encodings) {
  const prefix = name.toLowerCase();
  const connect = async (options = {}) => {
    const client = new Client(url, { websocket: WebSocket, token: all('ann'), minReconnectDelay: 20, ...options });
    client.connect();
    await client.ready();
    return client;
  };
  const subscribed = async (client, channel, options) => {
    const subscription = client.newSubscription(channel, options);
    const done = once(subscription, 'subscribed');
    subscription.subscribe();
    return { subscription, context: await done };
  };
  /** Ends the TCP connection without a closing handshake, as a lost network does. */
  const cut = (client) => client._transport._transport.terminate();

  check(`${name}: a publication reaches subscribers with its publisher`, async () => {
    const [ann, bob] = [await connect(), await connect({ token: all('bob', { info: { name: 'Bob' } }) })];
    const { subscription } = await subscribed(ann, `plain.${prefix}`);
    const own = await subscribed(bob, `plain.${prefix}`);
    const next = [events(subscription, 'publication'), events(own.subscription, 'publication')];
    await own.subscription.publish(write({ n: 1 }));
    for (const publication of [await next[0](), await next[1]()]) {
      same(read(publication.data), { n: 1 });
      same(publication.info.user, 'bob', 'user');
      same(read(publication.info.connInfo), { name: 'Bob' }, 'connInfo');
    }
    own.subscription.unsubscribe();
    await ann.publish(`plain.${prefix}`, write('again'));
    same(read((await next[0]()).data), 'again');
    ann.disconnect();
    bob.disconnect();
  });

  check(`${name}: presence lists clients, and joins and leaves come`, async () => {
    const ann = await connect();
    const { subscription } = await subscribed(ann, `here.${prefix}`);
    const [joined, left] = [events(subscription, 'join'), events(subscription, 'leave')];
    const bob = await connect({ token: all('bob') });
    await subscribed(bob, `here.${prefix}`);
    const join = await joined();
    same(join.info.user, 'bob');
    const { clients } = await subscription.presence();
    same(Object.values(clients).map((client) => client.user).sort(), ['ann', 'bob']);
    const { numClients, numUsers } = await subscription.presenceStats();
    same([numClients, numUsers], [2, 2]);
    cut(bob);
    bob.disconnect();
    same((await left()).info.client, join.info.client);
    ann.disconnect();
  });

  check(`${name}: a client recovers what it missed while its connection was lost`, async () => {
    const [ann, bob] = [await connect(), await connect()];
    const channel = `kept.${prefix}.lost`;
    const { subscription, context } = await subscribed(ann, channel);
    same([context.recoverable, context.positioned], [true, true]);
    const next = events(subscription, 'publication');
    await bob.publish(channel, write(1));
    const first = await next();
    const back = once(subscription, 'subscribed');
    cut(ann);
    for (const n of [2, 3, 4]) await bob.publish(channel, write(n));
    const again = await back;
    same([again.wasRecovering, again.recovered], [true, true]);
    await bob.publish(channel, write(5));
    const all = [await next(), await next(), await next(), await next()];
    same(all.map((publication) => read(publication.data)), [2, 3, 4, 5]);
    same(all.map((publication) => publication.offset - first.offset), [1, 2, 3, 4], 'offsets');
    ann.disconnect();
    bob.disconnect();
  });

  check(`${name}: a client that has missed too much is told`, async () => {
    const [ann, bob] = [await connect(), await connect()];
    const channel = `kept.${prefix}.much`;
    const { subscription } = await subscribed(ann, channel);
    const next = events(subscription, 'publication');
    await bob.publish(channel, write(0));
    await next();
    ann.disconnect();
    for (let n = 1; n < 40; n += 1) await bob.publish(channel, write(n));
    const back = once(subscription, 'subscribed');
    ann.connect();
    const again = await back;
    same([again.wasRecovering, again.recovered, again.hasRecoveredPublications], [true, false, false]);
    await bob.publish(channel, write('live'));
    same(read((await next()).data), 'live');
    ann.disconnect();
    bob.disconnect();
  });

  check(`${name}: history is read in pages`, async () => {
    const ann = await connect();
    const channel = `kept.${prefix}.pages`;
    for (let n = 1; n <= 7; n += 1) await ann.publish(channel, write(n));
    const pages = [];
    let since;
    for (;;) {
      const page = await ann.history(channel, { limit: 3, since });
      if (page.publications.length === 0) break;
      pages.push(page.publications.map((publication) => read(publication.data)));
      since = { offset: page.publications.at(-1).offset, epoch: page.epoch };
    }
    same(pages, [[1, 2, 3], [4, 5, 6], [7]]);
    const newest = await ann.history(channel, { limit: 2, reverse: true });
    same(newest.publications.map((publication) => read(publication.data)), [7, 6]);
    const wrong = await ann.history(channel, { limit: 1, since: { offset: 1, epoch: 'other' } }).catch((error) => error);
    same(wrong.code, 112);
    ann.disconnect();
  });

  check(`${name}: expired tokens are replaced, of the connection and of a subscription`, async () => {
    let asked = 0;
    const token = () => all('ann', { exp: inSeconds(2) });
    const renewed = new Promise((resolve) => {
      const getToken = async () => {
        asked += 1;
        if (asked === 2) resolve();
        return token();
      };
      connect({ token: '', getToken }).then((client) => {
        client.on('disconnected', ({ code, reason }) => resolve(new Error(`${code} ${reason}`)));
        let own = 0;
        const ofChannel = async ({ channel }) => {
          own += 1;
          return sign({ sub: 'ann', channel, exp: inSeconds(own === 1 ? 2 : 3600), info: { own } });
        };
        subscribed(client, `own.${prefix}`, { getToken: ofChannel }).then(async ({ subscription }) => {
          subscription.on('unsubscribed', ({ code }) => resolve(new Error(`unsubscribed ${code}`)));
        }, resolve);
      }, resolve);
    });
    const error = await renewed;
    if (error) throw error;
  });

  check(`${name}: server-side subscriptions come with the token, and recover`, async () => {
    const [bob, channel] = [await connect(), `kept.${prefix}.side`];
    const ann = new Client(url, {
      websocket: WebSocket,
      token: all('ann', { channels: [channel] }),
      minReconnectDelay: 20,
    });
    const [begun, next] = [events(ann, 'subscribed'), events(ann, 'publication')];
    ann.connect();
    same((await begun()).channel, channel);
    await bob.publish(channel, write(1));
    same(read((await next()).data), 1);
    cut(ann);
    await bob.publish(channel, write(2));
    const again = await begun();
    same([again.wasRecovering, again.recovered], [true, true]);
    same(read((await next()).data), 2);
    ann.disconnect();
    bob.disconnect();
  });

  check(`${name}: what is not allowed has its code`, async () => {
    const refused = new Client(url, { websocket: WebSocket, token: `${all('ann')}x` });
    const ended = once(refused, 'disconnected');
    refused.connect();
    same((await ended).code, 3500);
    const ann = await connect({ token: sign({ sub: 'ann', join: 'kept.>' }) });
    const other = ann.newSubscription(`other.${prefix}`);
    const denied = once(other, 'unsubscribed');
    other.subscribe();
    same((await denied).code, 103);
    for (const [attempt, code] of [
      [ann.publish(`kept.${prefix}`, write(1)), 103],
      [ann.history(`kept.${prefix}`, { limit: 1 }), 103],
      [ann.presence(`other.${prefix}`), 103],
      [ann.rpc('none', write(1)), 108],
    ]) {
      same((await attempt.then(() => ({ code: 0 }), (error) => error)).code, code);
    }
    ann.disconnect();
  });
}

check('both encodings and the plain protocol share a channel', async () => {
  const target = `ws://${process.argv[2]}/ws/shared?echo=1&token=${all('eve')}`;
  const plain = new WebSocket(target);
  await onceOf(plain, 'open');
  const clients = encodings.map(({ Client }) => new Client(url, { websocket: WebSocket, token: all('ann') }));
  const nexts = [];
  for (const client of clients) {
    client.connect();
    const subscription = client.newSubscription('shared');
    const done = once(subscription, 'subscribed');
    subscription.subscribe();
    await done;
    nexts.push(events(subscription, 'publication'));
  }
  plain.send('no JSON');
  same((await nexts[0]()).data, 'no JSON');
  same(decoder.decode((await nexts[1]()).data), 'no JSON');
  await clients[1].publish('shared', encoder.encode('{"from":"Protobuf"}'));
  same((await nexts[0]()).data, { from: 'Protobuf' });
  plain.close();
  for (const client of clients) client.disconnect();
});

await runChecks();
