"""One cell: one test against one fresh server process."""

import json
import subprocess
import time
from dataclasses import asdict, dataclass

from . import machine
from .paths import LOADGEN
from .peers import Peer
from .tests import Test

DESCRIPTORS_KEPT = 200  # for everything but the connections
NOISE = 0.05  # of one core used by others: a cell with more is not quoted


@dataclass
class Cell:
    test: str
    peer: str
    round: int
    result: dict  # the generator's JSON, or {"error": ...}
    foreign_share: float = 0.0  # of one core: what others used of the two cores meanwhile

    def value(self, key: str) -> float | None:
        return None if "error" in self.result else self.result.get(key)

    def is_noisy(self) -> bool:
        return self.foreign_share > NOISE

    def as_json(self) -> dict:
        return asdict(self)


def takes_part(peer: Peer, test: Test) -> bool:
    return not (peer.raw and test.text) and not (test.broadcast and not peer.channels)


def measure(peer: Peer, test: Test, round_number: int, overrides: list[str], retries: int = 0) -> Cell:
    """The quietest of up to `retries` + 1 attempts; chosen by what others did, never by the result."""
    best = attempt(peer, test, round_number, overrides)
    while best.is_noisy() and retries > 0:
        retries -= 1
        best = min(best, attempt(peer, test, round_number, overrides), key=lambda one: one.foreign_share)
    return best


def attempt(peer: Peer, test: Test, round_number: int, overrides: list[str]) -> Cell:
    if test.connections + DESCRIPTORS_KEPT > machine.Machine.describe().descriptors:
        return Cell(test.name, peer.name, round_number, {"error": "the descriptor limit is too low (ulimit -n)"})
    try:
        port = machine.free_port()
        with machine.Server(peer.command(port), port, peer.env) as server:
            return _load(server, peer, test, round_number, overrides)
    except (machine.CellFailed, OSError) as error:
        return Cell(test.name, peer.name, round_number, {"error": str(error)})


def _load(server: machine.Server, peer: Peer, test: Test, round_number: int, overrides: list[str]) -> Cell:
    command = [str(LOADGEN), *test.arguments, "--port", str(server.port), "--server-pid", str(server.pid)]
    command += overrides + (["--raw"] if peer.raw else [])
    busy, own = machine.core_busy_seconds(), machine.child_cpu_seconds()
    served, wall = machine.cpu_seconds(server.pid), time.monotonic()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=180,
            preexec_fn=machine.pinned(machine.GENERATOR_CORE),
        )
        result = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise machine.CellFailed("the generator did not end within 180 s") from None
    except json.JSONDecodeError:
        raise machine.CellFailed(f"the generator said {(done.stderr or done.stdout).strip()!r}") from None
    wall = time.monotonic() - wall
    try:
        served = machine.cpu_seconds(server.pid) - served
    except OSError:
        raise machine.CellFailed("the server died") from None
    own = machine.child_cpu_seconds() - own
    foreign = machine.core_busy_seconds() - busy - own - served
    return Cell(test.name, peer.name, round_number, result, max(0.0, foreign / wall))
