"""The referee must see what a wrong server does: python3 -m unittest discover bench/checks

Each test runs the generator against a small server in this process that answers rightly but in an
awkward shape (must pass), or wrongly (must be named and end with exit code 1).
"""

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import peers  # noqa: E402

ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
HEAD = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


def setUpModule() -> None:
    if not peers.LOADGEN.exists():
        peers.prepare_loadgen()


def frame(opcode: int, payload: bytes, final: bool = True) -> bytes:
    first = bytes([(0x80 if final else 0) | opcode])
    if len(payload) < 126:
        return first + bytes([len(payload)]) + payload
    if len(payload) < 65536:
        return first + struct.pack("!BH", 126, len(payload)) + payload
    return first + struct.pack("!BQ", 127, len(payload)) + payload


class Peer:
    """Accepts one connection after the other and answers each message with answer(opcode, payload)."""

    def __init__(self, answer, accept: bytes = ACCEPT, cut: bool = False):
        self._answer, self._accept, self._cut = answer, accept, cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept_all, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._talk(connection, connection.makefile("rb"))
        except (OSError, struct.error):  # the generator is done, or has seen enough
            pass
        finally:
            connection.close()

    def _talk(self, connection: socket.socket, stream) -> None:
        while stream.readline().strip():
            pass
        self._send(connection, HEAD + b"Sec-WebSocket-Accept: " + self._accept + b"\r\n\r\n")
        while True:
            head = stream.read(2)
            if len(head) < 2:
                return
            first, second = head
            length = second & 127
            if length == 126:
                (length,) = struct.unpack("!H", stream.read(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", stream.read(8))
            assert second & 128, "a client's frame is masked"
            key = stream.read(4)
            payload = bytes(b ^ key[i & 3] for i, b in enumerate(stream.read(length)))
            self._send(connection, self._answer(first & 15, payload))

    def _send(self, connection: socket.socket, data: bytes) -> None:
        """Whole, or byte by byte: each cut is a chance to lose something."""
        for piece in [data[i : i + 1] for i in range(len(data))] if self._cut else [data]:
            connection.sendall(piece)


class Referee(unittest.TestCase):
    def generate(self, answer, *arguments: str, **kind) -> tuple[int, dict]:
        peer = Peer(answer, **kind)
        self.addCleanup(peer.close)
        command = [str(peers.LOADGEN), "echo", "--port", str(peer.port), "--connections", "2"]
        command += ["--messages", "20", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, json.loads(done.stdout)

    def assert_passes(self, answer, *arguments: str, **kind) -> None:
        code, result = self.generate(answer, *arguments, **kind)
        self.assertEqual((code, result.get("error"), result.get("messages")), (0, None, 20))

    def assert_caught(self, why: str, answer, *arguments: str, **kind) -> None:
        code, result = self.generate(answer, *arguments, **kind)
        self.assertEqual(code, 1)
        self.assertIn(why, result["error"])

    def test_a_plain_echo_passes_at_every_length_encoding(self) -> None:
        for size in ("0", "1", "7", "8", "125", "126", "65535", "65536"):
            with self.subTest(size=size):
                self.assert_passes(frame, "--size", size)

    def test_text_passes(self) -> None:
        self.assert_passes(frame, "--text")
        self.assert_passes(frame, "--utf8", "--size", "1001")

    def test_the_text_that_is_sent_is_valid_utf8(self) -> None:
        def strict(opcode: int, payload: bytes) -> bytes:
            payload.decode("utf-8")
            return frame(opcode, payload)

        for size in range(1, 40):
            self.assert_passes(strict, "--utf8", "--size", str(size))

    def test_answers_cut_into_bytes_pass(self) -> None:
        self.assert_passes(frame, "--size", "300", cut=True)

    def test_fragments_with_a_ping_between_pass(self) -> None:
        def fragments(opcode: int, payload: bytes) -> bytes:
            return frame(opcode, payload[:10], False) + frame(9, b"hey") + frame(0, b"", False) + frame(0, payload[10:])

        self.assert_passes(fragments)
        self.assert_passes(fragments, cut=True)

    def test_pipelined_messages_pass(self) -> None:
        self.assert_passes(frame, "--pipeline", "5")

    def test_a_flipped_bit_is_caught(self) -> None:
        for position in (8, 50, 99):
            with self.subTest(position=position):

                def flip(opcode: int, payload: bytes) -> bytes:
                    damaged = bytearray(payload)
                    damaged[position] ^= 1
                    return frame(opcode, bytes(damaged))

                self.assert_caught("damaged", flip)

    def test_a_message_answered_twice_is_caught(self) -> None:
        self.assert_caught("not the expected message", lambda o, p: frame(o, p) * 2)

    def test_the_answer_of_another_connection_is_caught(self) -> None:
        last = [b""]

        def mixed_up(opcode: int, payload: bytes) -> bytes:
            last[0] = last[0] or payload
            return frame(opcode, last[0])

        self.assert_caught("not the expected message", mixed_up)

    def test_a_wrong_length_is_caught(self) -> None:
        self.assert_caught("instead of 100", lambda o, p: frame(o, p[:-1]))
        self.assert_caught("longer than", lambda o, p: frame(o, p + b"x"))

    def test_a_wrong_opcode_is_caught(self) -> None:
        self.assert_caught("opcode 1 instead of 2", lambda o, p: frame(1, p))

    def test_a_masked_answer_is_caught(self) -> None:
        self.assert_caught("mask bit", lambda o, p: bytes([0x82, 0x80 | len(p)]) + bytes(4) + p)

    def test_a_close_is_caught(self) -> None:
        self.assert_caught("closed", lambda o, p: frame(8, b""))

    def test_a_wrong_accept_key_is_caught(self) -> None:
        self.assert_caught("refused", frame, accept=b"AAAAAAAAAAAAAAAAAAAAAAAAAAA=")


class BareEcho(unittest.TestCase):
    """It is the limit that others are held against, so it must be right too, also when a socket is full."""

    def test_it_echoes_small_and_large_messages(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            binary = os.path.join(folder, "epoll_echo")
            source = str(peers.BENCH / "bare" / "epoll_echo.c")
            subprocess.run(["gcc", *peers.C_FLAGS, "-o", binary, source], check=True)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = str(probe.getsockname()[1])
            server = subprocess.Popen([binary, port])
            try:
                self.wait_until_listening(int(port))
                for size in ("0", "100", "70000", "9000000"):
                    command = [str(peers.LOADGEN), "echo", "--raw", "--port", port, "--connections", "3"]
                    done = subprocess.run([*command, "--messages", "9", "--size", size], capture_output=True, timeout=60)
                    self.assertEqual(done.returncode, 0, done.stdout)
            finally:
                server.terminate()
                server.wait()

    def wait_until_listening(self, port: int) -> None:
        for _ in range(1000):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=0.01).close()
                return
            except OSError:
                continue
        self.fail("the bare echo does not listen")


if __name__ == "__main__":
    unittest.main()
