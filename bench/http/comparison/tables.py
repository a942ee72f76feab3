"""A run as JSON rows, of which `lab tables` makes the tables."""

from harness.report import document, remarks, rows
from harness.tests import Metric

from .cells import Cell, cases
from .peers import PEERS

TABLES = (
    ("Requests per server CPU-second, medians over the rounds.", Metric("per_cpu_s", "")),
    ("Requests a second. Where the generator's core was full, it was the limit.", Metric("per_s", "")),
    ("The server's resident memory at the end, in MB.", Metric("rss_mb", "", 1, less_is_better=True)),
)


def report(cells: list[Cell], baseline: str) -> str:
    figures = [(case.name, table, case.title, metric) for table, metric in TABLES for case in cases()]
    found = rows(cells, lambda cell: cell.case, PEERS, figures)
    notes = remarks(cells, lambda cell: cell.case)
    return document(cells, PEERS, baseline, found, [*notes, errors(cells)])


def errors(cells: list[Cell]) -> str:
    counted: dict[str, int] = {}
    for cell in cells:
        if value := cell.value("errors"):
            name = f"{cell.peer}, {cell.case}"
            counted[name] = counted.get(name, 0) + int(value)
    lines = [f"- {name}: {count:,}" for name, count in counted.items()]
    return "Errors, of all rounds together:\n" + "\n".join(lines) if lines else "No errors."
