"""The client centrifuge-python against the server: python check_centrifuge.py 127.0.0.1:9001"""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import sys
import time

from centrifuge import CentrifugeError, Client, ReplyError, SubscriptionEventHandler
from centrifuge import ClientEventHandler

URL = f"ws://{sys.argv[1]}/connection/websocket"
SECRET = os.environ["THRONG_TOKEN_SECRET"].encode()
LIMIT_SECONDS = 30
CHECKS = []


def check(body):
    CHECKS.append(body)
    return body


def sign(**claims):
    def part(value):
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    head = json.dumps({"alg": "HS256"}).encode()
    signed = part(head) + b"." + part(json.dumps(claims).encode())
    return (signed + b"." + part(hmac.new(SECRET, signed, hashlib.sha256).digest())).decode()


def everything(user, **more):
    return sign(sub=user, join=">", publish=">", history=">", **more)


class OfClient(ClientEventHandler):
    def __init__(self):
        self.ended = asyncio.Queue()

    async def on_disconnected(self, ctx):
        await self.ended.put(ctx)


class OfSubscription(SubscriptionEventHandler):
    """Keeps everything that comes."""

    def __init__(self):
        self.subscribed = asyncio.Queue()
        self.ended = asyncio.Queue()
        self.publications = asyncio.Queue()
        self.joins = asyncio.Queue()
        self.leaves = asyncio.Queue()

    async def on_subscribed(self, ctx):
        await self.subscribed.put(ctx)

    async def on_unsubscribed(self, ctx):
        await self.ended.put(ctx)

    async def on_publication(self, ctx):
        await self.publications.put(ctx.pub)

    async def on_join(self, ctx):
        await self.joins.put(ctx.info)

    async def on_leave(self, ctx):
        await self.leaves.put(ctx.info)


class Encoding:
    def __init__(self, is_protobuf):
        self.is_protobuf = is_protobuf
        self.name = "protobuf" if is_protobuf else "json"

    def write(self, value):
        return json.dumps(value).encode() if self.is_protobuf else value

    def read(self, data):
        return json.loads(data) if self.is_protobuf else data

    async def connect(self, token=None, **options):
        client = Client(
            URL,
            token=everything("ann") if token is None else token,
            use_protobuf=self.is_protobuf,
            min_reconnect_delay=0.02,
            **options,
        )
        await client.connect()
        await client.ready(timeout=10)
        return client


async def subscribed(client, channel, **options):
    events = OfSubscription()
    subscription = client.new_subscription(channel, events=events, **options)
    await subscription.subscribe()
    return subscription, events, await events.subscribed.get()


@check
async def a_publication_reaches_subscribers_with_its_publisher(encoding):
    ann = await encoding.connect()
    bob = await encoding.connect(everything("bob", info={"name": "Bob"}))
    _, events, _ = await subscribed(ann, f"plain.{encoding.name}")
    own, own_events, _ = await subscribed(bob, f"plain.{encoding.name}")
    await own.publish(encoding.write({"n": 1}))
    for queue in [events.publications, own_events.publications]:
        publication = await queue.get()
        assert encoding.read(publication.data) == {"n": 1}, publication
        assert publication.info.user == "bob", publication
    await ann.disconnect()
    await bob.disconnect()


@check
async def presence_lists_clients_and_joins_and_leaves_come(encoding):
    ann = await encoding.connect()
    subscription, events, _ = await subscribed(ann, f"here.{encoding.name}")
    bob = await encoding.connect(everything("bob"))
    await subscribed(bob, f"here.{encoding.name}")
    join = await events.joins.get()
    assert join.user == "bob", join
    presence = await subscription.presence()
    assert sorted(one.user for one in presence.clients.values()) == ["ann", "bob"], presence
    stats = await subscription.presence_stats()
    assert (stats.num_clients, stats.num_users) == (2, 2), stats
    await bob.disconnect()
    leave = await events.leaves.get()
    assert leave.client == join.client, leave
    await ann.disconnect()


@check
async def a_client_recovers_what_it_missed_while_its_connection_was_lost(encoding):
    ann, bob = await encoding.connect(), await encoding.connect()
    channel = f"kept.{encoding.name}.lost"
    _, events, context = await subscribed(ann, channel)
    assert context.recoverable and context.positioned, context
    await bob.publish(channel, encoding.write(1))
    await events.publications.get()
    ann._conn.transport.abort()
    for n in [2, 3, 4]:
        await bob.publish(channel, encoding.write(n))
    again = await events.subscribed.get()
    assert again.was_recovering and again.recovered, again
    await bob.publish(channel, encoding.write(5))
    got = [encoding.read((await events.publications.get()).data) for _ in range(4)]
    assert got == [2, 3, 4, 5], got
    await ann.disconnect()
    await bob.disconnect()


@check
async def history_is_read_in_pages(encoding):
    ann = await encoding.connect()
    channel = f"kept.{encoding.name}.pages"
    subscription, _, _ = await subscribed(ann, channel)
    for n in range(1, 8):
        await subscription.publish(encoding.write(n))
    newest = await subscription.history(limit=2, reverse=True)
    assert [encoding.read(one.data) for one in newest.publications] == [7, 6], newest
    await ann.disconnect()


@check
async def an_expired_token_is_replaced(encoding):
    renewed = asyncio.Event()
    asked = 0

    async def get_token(*_):
        nonlocal asked
        asked += 1
        if asked == 2:
            renewed.set()
        return everything("ann", exp=int(time.time()) + 2)

    ann = await encoding.connect(token="", get_token=get_token)
    await renewed.wait()
    await ann.disconnect()


@check
async def what_is_not_allowed_has_its_code(encoding):
    events = OfClient()
    refused = Client(URL, token="none", events=events, use_protobuf=encoding.is_protobuf)
    await refused.connect()
    assert (await events.ended.get()).code == 3500
    ann = await encoding.connect(sign(sub="ann", join="kept.>"))
    ended = OfSubscription()
    other = ann.new_subscription(f"other.{encoding.name}", events=ended)
    await other.subscribe()
    assert (await ended.ended.get()).code == 103
    for attempt, code in [
        (ann.publish(f"kept.{encoding.name}", encoding.write(1)), 103),
        (ann.rpc("none", encoding.write(1)), 108),
    ]:
        try:
            await attempt
        except ReplyError as error:
            assert error.code == code, error
        else:
            raise AssertionError("it was allowed")
    await ann.disconnect()


async def main():
    failed = 0
    for encoding in [Encoding(False), Encoding(True)]:
        for body in CHECKS:
            name = f"{encoding.name}: {body.__name__.replace('_', ' ')}"
            try:
                await asyncio.wait_for(body(encoding), LIMIT_SECONDS)
                print(f"ok {name}", flush=True)
            except Exception as error:
                failed += 1
                print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
    sys.exit(1 if failed else 0)


asyncio.run(main())
