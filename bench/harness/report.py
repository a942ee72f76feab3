"""Tables of a run: absolute medians, and medians of same-round ratios to the baseline."""

from statistics import median

from .cell import Cell
from .peers import PEERS
from .tests import TESTS, Metric, Test


def figures_of(cells: list[Cell]) -> list[tuple[Test, Metric]]:
    measured = {cell.test for cell in cells}
    return [(test, metric) for test in TESTS.values() if test.name in measured for metric in test.metrics]


def peers_of(cells: list[Cell]) -> list[str]:
    measured = {cell.peer for cell in cells}
    return [name for name in PEERS if name in measured]


def by_round(cells: list[Cell], test: Test, metric: Metric, peer: str) -> dict[int, float]:
    found = {}
    for cell in cells:
        if cell.test == test.name and cell.peer == peer and (value := cell.value(metric.key)) is not None:
            found[cell.round] = value
    return found


def ratios(cells: list[Cell], test: Test, metric: Metric, peer: str, baseline: str) -> list[float]:
    """One ratio for each round that has both, so that a slow minute hits both sides of it."""
    ours = by_round(cells, test, metric, peer)
    theirs = by_round(cells, test, metric, baseline)
    return [ours[r] / theirs[r] for r in sorted(ours) if theirs.get(r, 0) > 0]


def number(value: float, metric: Metric) -> str:
    if not metric.less_is_better and value >= 1e6:
        return f"{value / 1e6:.2f}M"
    if not metric.less_is_better and value >= 1e4:
        return f"{value / 1e3:.1f}k"
    return f"{value:,.{metric.digits if value < 1000 else 0}f}"


def spread(found: list[float]) -> str:
    """The median, and the least and greatest when there is more than one."""
    digits = 2 if median(found) < 100 else 0
    texts = [f"{value:,.{digits}f}" for value in (median(found), min(found), max(found))]
    return f"{texts[0]} ({texts[1]}-{texts[2]})" if len(found) > 1 else texts[0]


def heading(test: Test, metric: Metric) -> str:
    return f"{test.title}, {metric.label}" if metric.label else test.title


def table(cells: list[Cell], corner: str, cell_text) -> str:
    """A row for each figure, a column for each server."""
    shown = peers_of(cells)
    lines = [
        f"| {corner} | " + " | ".join(PEERS[peer].title for peer in shown) + " |",
        "|---|" + "---:|" * len(shown),
    ]
    for test, metric in figures_of(cells):
        texts = [cell_text(test, metric, peer) for peer in shown]
        if any(texts):
            lines.append(f"| {heading(test, metric)} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def absolute_table(cells: list[Cell]) -> str:
    def text(test: Test, metric: Metric, peer: str) -> str:
        values = by_round(cells, test, metric, peer).values()
        return number(median(values), metric) if values else ""

    return table(cells, "work", text)


def ratio_table(cells: list[Cell], baseline: str) -> str:
    def text(test: Test, metric: Metric, peer: str) -> str:
        found = ratios(cells, test, metric, peer, baseline)
        return spread(found) if found and peer != baseline else ""

    return table(cells, f"ratio to {PEERS[baseline].title}", text)


def report(cells: list[Cell], baseline: str) -> str:
    parts = [
        "Messages (or connections) per server CPU-second, medians over the rounds; us, ms and B/conn: less is better.",
        absolute_table(cells),
    ]
    if baseline in peers_of(cells):
        parts += ["Median of same-round ratios, and their spread.", ratio_table(cells, baseline)]
    failed = sorted({f"{c.peer}, {c.test}: {c.result['error']}" for c in cells if "error" in c.result})
    if failed:
        parts.append("Not measured:\n" + "\n".join(f"- {line}" for line in failed))
    noisy = sum(cell.is_noisy() for cell in cells)
    if noisy:
        parts.append(
            f"{noisy} of {len(cells)} cells had other processes on their cores for over 5 % of the time: "
            "repeat on a quiet machine before quoting."
        )
    return "\n\n".join(parts)
