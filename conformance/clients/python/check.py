"""Python's websockets against the server: python check.py 127.0.0.1:9001"""

import asyncio
import os
import ssl
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

SERVER = sys.argv[1]
VERSION = os.environ.get("THRONG_TLS")
SCHEME = "wss" if VERSION else "ws"
TLS = ssl.create_default_context() if VERSION else None
if VERSION:
    TLS.maximum_version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[VERSION]
LIMIT_SECONDS = 30
CHECKS = []


def check(body):
    CHECKS.append(body)
    return body


def to(path, **options):
    return connect(f"{SCHEME}://{SERVER}{path}", max_size=8 << 20, proxy=None, ssl=TLS, **options)


async def echoes(socket, payload, text=None):
    await socket.send(payload, text=text)
    answer = await socket.recv()
    assert answer == payload, f"{len(answer)} of a {type(answer)} came back for {len(payload)}"


if VERSION:

    @check
    async def the_version_of_tls_is_the_one_that_was_offered():
        async with to("/echo") as socket:
            version = socket.transport.get_extra_info("ssl_object").version()
            assert version == f"TLSv{VERSION}", version


@check
async def text_binary_empty_and_1_mib_messages_come_back():
    async with to("/echo") as socket:
        for payload in ["Hello, 世界 🦀", "", b"", bytes(range(256)), os.urandom(65536), os.urandom(1 << 20), "é" * (1 << 19)]:
            await echoes(socket, payload)


@check
async def a_fragmented_message_comes_back_whole():
    async with to("/echo") as socket:
        for fragments in [["one ", "two ", "three"], [b"\x00", b"", b"\xff" * 70_000], ["é"] * 1000]:
            await socket.send(fragments)
            assert await socket.recv() == fragments[0][:0].join(fragments)


@check
async def a_ping_is_answered():
    async with to("/echo") as socket:
        for payload in [b"", b"ping", b"x" * 125]:
            await (await socket.ping(payload))
        await socket.pong(b"unasked")
        await echoes(socket, "still here")


@check
async def the_close_code_of_the_client_comes_back():
    for code, reason in [(1000, "done"), (1001, ""), (3000, "library"), (4999, "application é")]:
        socket = await to("/echo")
        await socket.close(code, reason)
        assert socket.close_code == code, f"closed with {socket.close_code}, not {code}"
        assert socket.protocol.close_rcvd is not None, "no close frame came"


@check
async def what_breaks_a_rule_is_closed_with_its_code():
    async def closed_with(payload, code, **options):
        socket = await to("/echo")
        try:
            await socket.send(payload, **options)
            await socket.recv()
        except ConnectionClosed as closed:
            assert closed.rcvd and closed.rcvd.code == code, f"closed with {closed.rcvd}, not {code}"
            return
        raise AssertionError(f"not closed with {code}")

    await closed_with(b"H\xffI", 1007, text=True)
    await closed_with(bytes((4 << 20) + 1), 1009)


@check
async def ten_thousand_pipelined_messages_come_back_in_order():
    async with to("/echo") as socket:
        async def send():
            for number in range(10_000):
                await socket.send(str(number))

        sending = asyncio.ensure_future(send())
        for number in range(10_000):
            answer = await socket.recv()
            assert answer == str(number), f"expected {number}, got {answer}"
        await sending


@check
async def no_extension_and_no_subprotocol_is_chosen():
    async with to("/echo", subprotocols=["chat", "superchat"]) as socket:
        assert socket.subprotocol is None, socket.subprotocol
        assert not socket.protocol.extensions, socket.protocol.extensions
        await echoes(socket, "plain")


@check
async def an_unknown_path_is_refused():
    try:
        await to("/nowhere")
    except InvalidStatus as refused:
        assert refused.response.status_code == 404, refused.response.status_code
        return
    raise AssertionError("it was accepted")


@check
async def a_channel_reaches_its_other_members():
    async with to("/ws/python") as ann, to("/ws/python") as bob, to("/ws/python?echo=1") as eve:
        await ann.send("from ann")
        assert [await bob.recv(), await eve.recv()] == ["from ann"] * 2
        await eve.send(b"\x00\x01")
        assert [await ann.recv(), await bob.recv(), await eve.recv()] == [b"\x00\x01"] * 3


async def main():
    failed = 0
    for body in CHECKS:
        name = body.__name__.replace("_", " ")
        try:
            await asyncio.wait_for(body(), LIMIT_SECONDS)
            print(f"ok {name}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
    sys.exit(1 if failed else 0)


asyncio.run(main())
