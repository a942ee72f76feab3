"""The referee must see what a wrong server does: python3 -m unittest discover bench/checks

Each test runs the generator against a small server in this process that answers rightly but in an
awkward shape (must pass), or wrongly (must be named and end with exit code 1).
"""

import os
import socket
import subprocess
import tempfile
import unittest

from fakes import Generates, frame, peers


class Referee(Generates, unittest.TestCase):
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
