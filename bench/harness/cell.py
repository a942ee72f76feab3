"""One cell: one test against one fresh server process."""

import json
import subprocess
import time
from dataclasses import asdict, dataclass

from . import machine
from .paths import LOADGEN
from .peers import Peer, throng_can_deflate
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
    """Whether the peer can do the test at all; whether it is prepared is another question."""
    if peer.only is not None and test.name not in peer.only:
        return False
    wanted = peer.context if test.context else peer.deflate
    if test.deflate and (wanted is None or (peer.family == "throng" and not throng_can_deflate())):
        return False
    if test.servers > 1 and not peer.shares_port:
        return False
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
        result, foreign_share = _run(peer, test, test.arguments, overrides)
        if test.minus:  # the same with a fresh server and other work: what counts is the difference
            other, other_share = _run(peer, test, test.minus, overrides)
            foreign_share = max(foreign_share, other_share)
            result = _difference(result, other)
        return Cell(test.name, peer.name, round_number, result, foreign_share)
    except (machine.CellFailed, OSError) as error:
        return Cell(test.name, peer.name, round_number, {"error": str(error)})


def _difference(one: dict, other: dict) -> dict:
    if "error" in one or "error" in other:
        return {"error": one.get("error") or other["error"]}
    numbers = {key: one[key] - other[key] for key in one if isinstance(one[key], float)}
    return {**numbers, "minuend": one, "subtrahend": other}


def _run(peer: Peer, test: Test, arguments: tuple[str, ...], overrides: list[str]) -> tuple[dict, float]:
    """The generator's result, and what others used of the two cores."""
    port = machine.free_port()
    start = peer.context if test.context else peer.deflate if test.deflate else peer.command
    command = start(port)
    command = [*command, *test.settings.get(peer.family, ())]
    with machine.Server(command, port, peer.env, test.cores, test.servers) as server:
        return _load(server, peer, arguments, overrides)


def _load(server: machine.Server, peer: Peer, arguments: tuple[str, ...], overrides: list[str]) -> tuple[dict, float]:
    command = [str(LOADGEN), *arguments, "--port", str(server.port)]
    for pid in server.pids:
        command += ["--server-pid", str(pid)]
    for pid in server.softirq_threads:
        command += ["--kernel-thread", str(pid)]
    command += overrides + (["--raw"] if peer.raw else [])
    busy, own = machine.core_busy_seconds(), machine.child_cpu_seconds()
    served, left_behind, wall = server.cpu_seconds(), server.softirq_seconds(), time.monotonic()
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
        served = server.cpu_seconds() - served
    except OSError:
        raise machine.CellFailed("the server died") from None
    if served > 0:
        result["softirq_share"] = (server.softirq_seconds() - left_behind) / served
    own = machine.child_cpu_seconds() - own
    foreign = machine.core_busy_seconds() - busy - own - served
    return result, max(0.0, foreign / wall)
