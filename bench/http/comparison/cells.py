"""One cell: one kind of load on one fresh server process."""

import time
from dataclasses import asdict, dataclass

from harness import machine
from harness.cell import DESCRIPTORS_KEPT, NOISE

from . import work
from .generators import Load
from .peers import Peer


@dataclass(frozen=True)
class Case:
    mode: str
    connections: int
    keep_alive: bool
    pipeline: int = 1

    @property
    def name(self) -> str:
        if self.pipeline > 1:
            return f"{self.mode}-{self.connections}-p{self.pipeline}"
        return f"{self.mode}-{self.connections}-{'keep' if self.keep_alive else 'close'}"

    @property
    def title(self) -> str:
        how = "keep-alive" if self.keep_alive else "close"
        if self.pipeline > 1:
            how = f"pipeline {self.pipeline}"
        return f"{self.mode}, {self.connections:,} conns, {how}" if self.connections > 1 else f"{self.mode}, 1 conn, {how}"


def cases() -> list[Case]:
    """Every kind of load there is, in the order of the tables."""
    found = []
    for mode in ("blank", "work"):
        for keep_alive in (True, False):
            found += [Case(mode, connections, keep_alive) for connections in (1, 100, 1_000, 10_000)]
        if mode == "blank":
            found.append(Case(mode, 100, True, 16))
    return found


@dataclass
class Cell:
    case: str
    peer: str
    round: int
    result: dict  # a Result, or {"error": ...}
    foreign_share: float = 0.0  # of one core: what others used of the two cores meanwhile

    def value(self, key: str) -> float | None:
        return None if "error" in self.result else self.result.get(key)

    def is_noisy(self) -> bool:
        return self.foreign_share > NOISE


def takes_part(peer: Peer, case: Case) -> bool:
    return peer.works or case.mode == "blank"


def measure(peer: Peer, case: Case, round_number: int, generator, duration_s: float, warmup_s: float) -> Cell:
    cell = Cell(case.name, peer.name, round_number, {})
    if case.connections + DESCRIPTORS_KEPT > machine.Machine.describe().descriptors:
        cell.result = {"error": "the descriptor limit is too low (ulimit -n)"}
        return cell
    load = Load(case.mode, case.connections, case.keep_alive, case.pipeline, peer.method, duration_s, warmup_s)
    port = machine.free_port()
    try:
        with machine.Server(peer.command(port, case.mode), port, peer.env) as server:
            work.check(port, case.mode, peer.method)
            busy, own = machine.core_busy_seconds(), machine.child_cpu_seconds()
            served, wall = server.cpu_seconds(), time.monotonic()
            cell.result = asdict(generator.measure(load, server))
            wall = time.monotonic() - wall
            used = server.cpu_seconds() - served + machine.child_cpu_seconds() - own
            cell.foreign_share = max(0.0, machine.core_busy_seconds() - busy - used) / wall
    except (machine.CellFailed, work.Wrong, OSError, ValueError, KeyError) as error:
        cell.result = {"error": f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)}
    return cell
