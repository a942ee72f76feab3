"""Compressed messages: whatever RFC 7692 allows passes, whatever it does not is named."""

import json
import subprocess
import unittest
import zlib

from fakes import Generates, Peer, frame, peers


class Deflate(Generates, unittest.TestCase):
    """The answer function gets the compressed payload and returns a whole frame, as for any message."""

    AGREED = b"permessage-deflate; server_no_context_takeover; client_no_context_takeover"

    def generate(self, answer, *arguments: str, **kind) -> tuple[int, dict]:
        return super().generate(answer, "--deflate", *arguments, **{"extension": self.AGREED, **kind})

    @staticmethod
    def plain(payload: bytes) -> bytes:
        return zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff")

    @staticmethod
    def packed(plain: bytes) -> bytes:
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        return (packer.compress(plain) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]

    @staticmethod
    def compressed_frame(opcode: int, payload: bytes, final: bool = True) -> bytes:
        first, *rest = frame(opcode, payload, final)
        return bytes([first | 0x40, *rest])

    def recompressed(self, opcode: int, payload: bytes) -> bytes:
        return self.compressed_frame(opcode, self.packed(self.plain(payload)))

    def test_what_is_sent_inflates_to_json_of_the_right_size(self) -> None:
        def strict(opcode: int, payload: bytes) -> bytes:
            plain = self.plain(payload)
            assert len(plain) == 1024 and len(payload) < 600, (len(plain), len(payload))
            assert plain[8:].startswith(b'{"trades":[{"id":'), plain
            return self.recompressed(opcode, payload)

        self.assert_passes(strict, "--size", "1024")

    def test_any_compression_passes_and_the_ratio_is_shown(self) -> None:
        for size in ("8", "9", "125", "5000"):
            self.assert_passes(self.recompressed, "--size", size, cut=True)
        peer = Peer(self.recompressed, extension=self.AGREED)
        self.addCleanup(peer.close)
        command = [str(peers.LOADGEN), "echo", "--deflate", "--size", "1024", "--port", str(peer.port)]
        done = subprocess.run([*command, "--duration", "0.2", "--warmup", "0.1"], capture_output=True, timeout=60)
        self.assertTrue(0.1 < json.loads(done.stdout)["ratio"] < 0.6, done.stdout)

    def test_compressed_fragments_with_a_ping_between_pass(self) -> None:
        def fragments(opcode: int, payload: bytes) -> bytes:
            packed = self.packed(self.plain(payload))
            return self.compressed_frame(opcode, packed[:9], False) + frame(9, b"hey") + frame(0, packed[9:])

        self.assert_passes(fragments, "--size", "1024", cut=True)

    def test_a_last_block_marked_as_such_passes(self) -> None:
        def finished(opcode: int, payload: bytes) -> bytes:  # RFC 7692 section 7.2.3.3
            packer = zlib.compressobj(6, zlib.DEFLATED, -15)
            return self.compressed_frame(opcode, packer.compress(self.plain(payload)) + packer.flush() + b"\0")

        self.assert_passes(finished, "--size", "1024")

    def test_an_answer_that_is_not_compressed_is_caught(self) -> None:
        self.assert_caught("not compressed", lambda o, p: frame(o, self.plain(p)))

    def test_a_damaged_message_is_caught(self) -> None:
        def damaged(opcode: int, payload: bytes) -> bytes:
            plain = bytearray(self.plain(payload))
            plain[50] ^= 1
            return self.compressed_frame(opcode, self.packed(bytes(plain)))

        self.assert_caught("damaged", damaged)

    def test_what_does_not_inflate_is_caught(self) -> None:
        self.assert_caught("does not inflate", lambda o, p: self.compressed_frame(o, b"\xff" * 20))

    def test_a_message_that_inflates_to_another_length_is_caught(self) -> None:
        def longer(opcode: int, payload: bytes) -> bytes:
            return self.compressed_frame(opcode, self.packed(self.plain(payload) + b"x" * 9))

        self.assert_caught("longer than", longer)
        self.assert_caught("instead of", lambda o, p: self.compressed_frame(o, self.packed(self.plain(p)[:-1])))

    def test_a_server_that_keeps_its_history_is_refused(self) -> None:
        self.assert_caught("refused", self.recompressed, extension=b"permessage-deflate")


class Context(Generates, unittest.TestCase):
    """With --context the answers of a connection are one stream, and every message is another."""

    AGREED = b"permessage-deflate; client_max_window_bits=10"

    def setUp(self) -> None:
        self.packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        self.seen: list[bytes] = []

    def generate(self, answer, *arguments: str, **kind) -> tuple[int, dict]:
        return super().generate(
            answer, "--context", "--connections", "1", *arguments, **{"extension": self.AGREED, **kind}
        )

    def streamed(self, opcode: int, payload: bytes, stray: int = -1) -> bytes:
        plain = zlib.decompressobj(-10).decompress(payload + b"\0\0\xff\xff")
        self.seen.append(plain)
        if len(self.seen) == stray:  # a message that the other side never gets
            self.packer.compress(b"of another connection " * 9)
            self.packer.flush(zlib.Z_SYNC_FLUSH)
        packed = (self.packer.compress(plain) + self.packer.flush(zlib.Z_SYNC_FLUSH))[:-4]
        return Deflate.compressed_frame(opcode, packed)

    def test_answers_that_refer_to_earlier_ones_pass_and_the_texts_differ(self) -> None:
        self.assert_passes(self.streamed, "--size", "256")
        bodies = {plain[8:] for plain in self.seen}
        self.assertEqual((len(self.seen), len(bodies)), (20, 20))

    def test_an_answer_that_refers_to_what_was_never_sent_is_caught(self) -> None:
        self.assert_caught("answer", lambda o, p: self.streamed(o, p, stray=2))

    def test_a_server_that_keeps_no_context_is_refused(self) -> None:
        self.assert_caught("refused", self.streamed, extension=Deflate.AGREED)


if __name__ == "__main__":
    unittest.main()
