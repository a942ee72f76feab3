"""Tables of a run: medians over its rounds, and medians of same-round ratios to the baseline."""

from collections.abc import Callable
from statistics import median

from harness.report import spread

from .cells import Case, Cell, cases
from .peers import PEERS


def by_round(cells: list[Cell], case: str, key: str, peer: str) -> dict[int, float]:
    found = {}
    for cell in cells:
        if cell.case == case and cell.peer == peer and (value := cell.value(key)) is not None:
            found[cell.round] = value
    return found


def ratios(cells: list[Cell], case: str, peer: str, baseline: str) -> list[float]:
    """One ratio for each round that has both, so that a slow minute hits both sides of it."""
    ours = by_round(cells, case, "per_cpu_s", peer)
    theirs = by_round(cells, case, "per_cpu_s", baseline)
    return [ours[r] / theirs[r] for r in sorted(ours) if theirs.get(r, 0) > 0]


def thousands(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1e3:.1f}k" if value >= 1e3 else f"{value:.0f}"


def table(cells: list[Cell], corner: str, text: Callable[[Case, str], str]) -> str:
    """A row for each kind of load, a column for each server."""
    shown = [name for name in PEERS if any(cell.peer == name for cell in cells)]
    lines = [f"| {corner} | " + " | ".join(PEERS[peer].title for peer in shown) + " |", "|---|" + "---:|" * len(shown)]
    for case in cases():
        texts = [text(case, peer) for peer in shown]
        if any(texts):
            lines.append(f"| {case.title} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def of_medians(cells: list[Cell], key: str, write: Callable[[float], str]) -> Callable[[Case, str], str]:
    def text(case: Case, peer: str) -> str:
        values = by_round(cells, case.name, key, peer).values()
        return write(median(values)) if values else ""

    return text


def report(cells: list[Cell], baseline: str) -> str:
    def ratio(case: Case, peer: str) -> str:
        found = ratios(cells, case.name, peer, baseline)
        return spread(found) if found and peer != baseline else ""

    parts = [
        "Requests per server CPU-second, medians over the rounds.",
        table(cells, "load", of_medians(cells, "per_cpu_s", thousands)),
    ]
    if any(cell.peer == baseline for cell in cells):
        parts += [
            "Median of same-round ratios of these, and their spread.",
            table(cells, f"ratio to {PEERS[baseline].title}", ratio),
        ]
    parts += [
        "Requests a second. Where the generator's core was full, it was the limit.",
        table(cells, "load", of_medians(cells, "per_s", thousands)),
        "The server's resident memory at the end, in MB.",
        table(cells, "load", of_medians(cells, "rss_mb", "{:.1f}".format)),
    ]
    parts += [notes for notes in (failures(cells), errors(cells), noise(cells)) if notes]
    return "\n\n".join(parts)


def failures(cells: list[Cell]) -> str:
    failed = sorted({f"{c.peer}, {c.case}: {c.result['error']}" for c in cells if "error" in c.result})
    return "Not measured:\n" + "\n".join(f"- {line}" for line in failed) if failed else ""


def errors(cells: list[Cell]) -> str:
    counted: dict[str, int] = {}
    for cell in cells:
        if value := cell.value("errors"):
            name = f"{cell.peer}, {cell.case}"
            counted[name] = counted.get(name, 0) + int(value)
    lines = [f"- {name}: {count:,}" for name, count in counted.items()]
    return "Errors, of all rounds together:\n" + "\n".join(lines) if lines else "No errors."


def noise(cells: list[Cell]) -> str:
    noisy = sum(cell.is_noisy() for cell in cells)
    if not noisy:
        return ""
    return (
        f"{noisy} of {len(cells)} cells had other processes on their cores for over 5 % of the time: "
        "repeat on a quiet machine before quoting."
    )
