"""A run as JSON rows, of which `lab tables` makes the tables."""

import json
from collections.abc import Callable, Iterable

from .cell import Cell
from .peers import PEERS
from .tests import TESTS, Metric

PER_CPU = "Messages (or connections) per server CPU-second, medians over the rounds; us, ms and B/conn: less is better."
NOISY = (
    "{} of {} cells had other processes on their cores for over 5 % of the time: "
    "repeat on a quiet machine before quoting."
)


def row(table: str, work: str, metric: Metric, server: str, round_number: int, value: float) -> dict:
    """One figure; the tables show the median of its rounds."""
    form = {"digits": metric.digits, "is_rate": not metric.less_is_better}
    return {"table": table, "work": work, "server": server, "round": round_number, "value": value, **form}


def rows(cells: list, name: Callable, peers: dict, figures: Iterable[tuple[str, str, str, Metric]]) -> list[dict]:
    """The figures (test, table, title and metric) of all cells; `name` is the test of a cell."""
    return [
        row(table, title, metric, peers[cell.peer].title, cell.round, value)
        for test, table, title, metric in figures
        for cell in cells
        if name(cell) == test and (value := cell.value(metric.key)) is not None
    ]


def remarks(cells: list, name: Callable) -> list[str]:
    """What was not measured, and what was disturbed."""
    failed = sorted({f"{c.peer}, {name(c)}: {c.result['error']}" for c in cells if "error" in c.result})
    found = ["Not measured:\n" + "\n".join(f"- {line}" for line in failed)] if failed else []
    noisy = sum(cell.is_noisy() for cell in cells)
    return found + ([NOISY.format(noisy, len(cells))] if noisy else [])


def document(cells: list, peers: dict, baseline: str, found: list[dict], notes: list[str]) -> str:
    """All of it as `lab tables` reads it, the servers in the order of the columns."""
    servers = [peer.title for name, peer in peers.items() if any(cell.peer == name for cell in cells)]
    shown = {"servers": servers, "baseline": peers[baseline].title, "rows": found, "remarks": notes}
    return json.dumps(shown, indent=1)


def heading(title: str, metric: Metric) -> str:
    return f"{title}, {metric.label}" if metric.label else title


def report(cells: list[Cell], baseline: str) -> str:
    figures = [(t.name, PER_CPU, heading(t.title, metric), metric) for t in TESTS.values() for metric in t.metrics]
    found = rows(cells, lambda cell: cell.test, PEERS, figures)
    return document(cells, PEERS, baseline, found, remarks(cells, lambda cell: cell.test))
