"""Small servers that answer rightly or wrongly, for the tests of the generator."""

import json
import queue
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import peers  # noqa: E402

ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
HEAD = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


def frame(opcode: int, payload: bytes, final: bool = True) -> bytes:
    first = bytes([(0x80 if final else 0) | opcode])
    if len(payload) < 126:
        return first + bytes([len(payload)]) + payload
    if len(payload) < 65536:
        return first + struct.pack("!BH", 126, len(payload)) + payload
    return first + struct.pack("!BQ", 127, len(payload)) + payload


class Peer:
    """Accepts one connection after the other and answers each message with answer(opcode, payload)."""

    def __init__(self, answer, accept: bytes = ACCEPT, cut: bool = False, extension: bytes = b""):
        self._answer, self._accept, self._cut = answer, accept, cut
        self._extension = b"Sec-WebSocket-Extensions: " + extension + b"\r\n" if extension else b""
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
        path = stream.readline().split()[1].decode()
        while stream.readline().strip():
            pass
        self._join(connection, path)
        self._send(connection, HEAD + self._extension + b"Sec-WebSocket-Accept: " + self._accept + b"\r\n\r\n")
        self._listen(connection, stream)

    def _join(self, connection: socket.socket, path: str) -> None:
        """Before the answer to the upgrade: whoever has that is a member."""

    def _listen(self, connection: socket.socket, stream) -> None:
        while (message := self._read(stream)) is not None:
            self._send(connection, self._answer(*message))

    @staticmethod
    def _read(stream) -> tuple[int, bytes] | None:
        """The next message's opcode and payload."""
        head = stream.read(2)
        if len(head) == 2:
            first, second = head
            length = second & 127
            if length == 126:
                (length,) = struct.unpack("!H", stream.read(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", stream.read(8))
            assert second & 128, "a client's frame is masked"
            key = stream.read(4)
            return first & 15, bytes(b ^ key[i & 3] for i, b in enumerate(stream.read(length)))
        return None

    def _send(self, connection: socket.socket, data: bytes) -> None:
        """Whole, or byte by byte: each cut is a chance to lose something."""
        for piece in [data[i : i + 1] for i in range(len(data))] if self._cut else [data]:
            connection.sendall(piece)


class Channels(Peer):
    """A channel for each path; `deliver(number, frame)` says what its other members get of publish `number`, a
    list of frames for each of `members` of them."""

    def __init__(self, deliver=lambda number, members, message: [[message]] * members):
        self._members: dict[str, list[queue.SimpleQueue]] = {}
        self._places: dict[socket.socket, tuple[str, queue.SimpleQueue]] = {}
        self._lock = threading.Lock()
        self._deliver, self._number = deliver, 0
        super().__init__(answer=None)

    def _join(self, connection: socket.socket, path: str) -> None:
        outbox: queue.SimpleQueue = queue.SimpleQueue()
        with self._lock:
            self._members.setdefault(path, []).append(outbox)
            self._places[connection] = path, outbox

    def _listen(self, connection: socket.socket, stream) -> None:
        path, outbox = self._places[connection]
        threading.Thread(target=self._write, args=(connection, outbox), daemon=True).start()
        while (message := self._read(stream)) is not None:
            with self._lock:
                others = [member for member in self._members[path] if member is not outbox]
                deliveries = self._deliver(self._number, len(others), frame(*message))
                self._number += 1
                for member, frames in zip(others, deliveries):
                    for one in frames:
                        member.put(one)
        outbox.put(None)

    @staticmethod
    def _write(connection: socket.socket, outbox: queue.SimpleQueue) -> None:
        try:
            while (data := outbox.get()) is not None:
                connection.sendall(data)
        except OSError:
            pass


class Generates:
    """Runs the generator against one of these servers."""

    @classmethod
    def setUpClass(cls) -> None:
        built = peers.LOADGEN.stat().st_mtime if peers.LOADGEN.exists() else 0
        if any(source.stat().st_mtime > built for source in (peers.BENCH / "loadgen").iterdir()):
            peers.prepare_loadgen()

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
