"""The arithmetic of the report: python3 -m unittest discover bench/checks"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import cell, report  # noqa: E402
from harness.cell import Cell  # noqa: E402
from harness.peers import PEERS  # noqa: E402
from harness.tests import TESTS  # noqa: E402

ECHO = TESTS["echo100"]
METRIC = ECHO.metrics[0]


def cells(peer: str, *values: float | None) -> list[Cell]:
    return [
        Cell("echo100", peer, n, {"error": "died"} if value is None else {"per_cpu_s": value})
        for n, value in enumerate(values, 1)
    ]


class Report(unittest.TestCase):
    def test_ratios_are_taken_within_a_round(self) -> None:
        # A machine half as fast in round 2 must not show in the ratio.
        both = cells("epoll", 100, 50, 100) + cells("throng", 90, 45, 90)
        self.assertEqual(report.ratios(both, ECHO, METRIC, "throng", "epoll"), [0.9, 0.9, 0.9])

    def test_a_round_without_one_of_the_two_is_left_out(self) -> None:
        both = cells("epoll", 100, None, 100) + cells("throng", 90, 45, None)
        self.assertEqual(report.ratios(both, ECHO, METRIC, "throng", "epoll"), [0.9])

    def test_a_failed_cell_is_named(self) -> None:
        text = report.report(cells("throng", 1.0, None), "epoll")
        self.assertIn("throng, echo100: died", text)

    def test_spread_shows_median_least_and_greatest(self) -> None:
        self.assertEqual(report.spread([1.0, 3.0, 2.0]), "2.00 (1.00-3.00)")
        self.assertEqual(report.spread([1.0]), "1.00")

    def test_a_bare_echo_takes_no_part_in_text_and_broadcast(self) -> None:
        taken = {name for name, test in TESTS.items() if cell.takes_part(PEERS["epoll"], test)}
        without = {name for name, test in TESTS.items() if test.text or test.broadcast or test.deflate}
        self.assertEqual(taken, set(TESTS) - without)
        self.assertLessEqual({"text1k", "text16k", "utf16k", "broadcast", "channels", "deflate1k"}, without)


if __name__ == "__main__":
    unittest.main()
