"""The rows of the report: python3 -m unittest discover bench/checks"""

import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import cell, report  # noqa: E402
from harness.cell import Cell  # noqa: E402
from harness.peers import PEERS  # noqa: E402
from harness.tests import TESTS  # noqa: E402


def cells(peer: str, *values: float | None) -> list[Cell]:
    return [
        Cell("echo100", peer, n, {"error": "died"} if value is None else {"per_cpu_s": value})
        for n, value in enumerate(values, 1)
    ]


class Report(unittest.TestCase):
    def test_each_figure_of_a_round_is_a_row(self) -> None:
        both = cells("epoll", 100, 50) + cells("throng", 90, None)
        document = json.loads(report.report(both, "epoll"))
        self.assertEqual((document["servers"], document["baseline"]), (["Throng", "bare epoll echo"], "bare epoll echo"))
        self.assertEqual([row["value"] for row in document["rows"]], [100, 50, 90])
        first = {key: document["rows"][0][key] for key in ("work", "round", "digits", "is_rate")}
        self.assertEqual(first, {"work": "100 B", "round": 1, "digits": 0, "is_rate": True})

    def test_a_failed_cell_is_named(self) -> None:
        document = json.loads(report.report(cells("throng", 1.0, None), "epoll"))
        self.assertIn("throng, echo100: died", document["remarks"][0])

    def test_a_bare_echo_takes_no_part_in_text_and_broadcast(self) -> None:
        taken = {name for name, test in TESTS.items() if cell.takes_part(PEERS["epoll"], test)}
        without = {name for name, test in TESTS.items() if test.text or test.broadcast or test.deflate}
        self.assertEqual(taken, set(TESTS) - without)
        self.assertLessEqual({"text1k", "text16k", "utf16k", "broadcast", "channels", "deflate1k"}, without)


if __name__ == "__main__":
    unittest.main()
