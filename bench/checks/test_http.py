"""The comparison of HTTP servers: what is checked, counted and compared."""

import json
import socket
import sys
import threading
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(BENCH), str(BENCH / "http")]
from comparison import cells, tables, work  # noqa: E402
from comparison.cells import Case, Cell  # noqa: E402
from comparison.generators import GENERATORS, Load  # noqa: E402
from comparison.peers import PEERS  # noqa: E402
from harness.machine import CellFailed  # noqa: E402

KEEP = Case("blank", 100, True)


def cell(peer: str, round_number: int, per_cpu_s: float | None, errors: int = 0) -> Cell:
    figures = {"per_cpu_s": per_cpu_s, "per_s": per_cpu_s, "rss_mb": 1.0, "errors": errors}
    return Cell(KEEP.name, peer, round_number, {"error": "died"} if per_cpu_s is None else figures)


class Server:
    """Answers each request with the next of the given answers, then closes."""

    def __init__(self, *answers: bytes):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, args=(answers,), daemon=True)
        self.thread.start()

    def serve(self, answers: tuple[bytes, ...]) -> None:
        connection, _ = self.socket.accept()
        with connection:
            for answer in answers:
                asked = b""
                while b"\r\n\r\n" not in asked or (b"requestId" in asked and not asked.endswith(b"}")):
                    data = connection.recv(65536)
                    if not data:
                        return
                    asked += data
                connection.sendall(answer)

    def close(self) -> None:
        self.thread.join(timeout=10)
        self.socket.close()


def answer(body: bytes, status: str = "200 OK", content_type: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def worked(document: dict) -> bytes:
    return answer(json.dumps(work.answer(document), indent=2).encode(), content_type="application/json")


class Check(unittest.TestCase):
    def check(self, mode: str, *answers: bytes) -> None:
        server = Server(*answers)
        try:
            work.check(server.port, mode, "GET")
        finally:
            server.close()

    def test_right_answers_pass(self) -> None:
        self.check("blank", answer(b"OK"), answer(b"OK"))
        self.check("work", worked(work.DOCUMENT), worked(work.OTHER))

    def test_wrong_answers_do_not(self) -> None:
        for mode, first, second in (
            ("blank", answer(b"KO"), answer(b"OK")),
            ("blank", answer(b"OK", "404 Not Found"), answer(b"OK")),
            ("blank", answer(b"OK", content_type="text/html"), answer(b"OK")),
            ("blank", answer(b"OK"), answer(b"OK\n")),
            ("blank", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nOK", answer(b"OK")),
            # The same answer to another document: it was not computed.
            ("work", worked(work.DOCUMENT), worked(work.DOCUMENT)),
            ("work", worked(work.DOCUMENT).replace(b"2020-01-01T00", b"2020-01-01T01"), worked(work.OTHER)),
            ("work", answer(b"OK"), worked(work.OTHER)),
        ):
            with self.subTest(mode=mode, first=first), self.assertRaises(work.Wrong):
                self.check(mode, first, second)

    def test_order_of_keys_counts(self) -> None:
        turned = dict(reversed(work.answer(work.DOCUMENT).items()))
        wrong = answer(json.dumps(turned).encode(), content_type="application/json")
        with self.assertRaises(work.Wrong):
            self.check("work", wrong, worked(work.OTHER))

    def test_the_oracle_knows_the_contract(self) -> None:
        client = work.answer(work.DOCUMENT)["client"]
        self.assertEqual(client["minDate"], "2020-01-01T00:00:00.007Z")
        self.assertEqual(client["maxDate"], "2020-11-10T06:47:04.462Z")


class Generators(unittest.TestCase):
    def test_flags_of_ours(self) -> None:
        command = GENERATORS["throng"].command(Load("blank", 100, True, 16, "GET", 1.5, 0.5), 80, 7)
        self.assertIn("http://127.0.0.1:80/", command)
        self.assertEqual(command[command.index("--pipeline") + 1], "16")
        self.assertEqual(command[command.index("--server-pid") + 1], "7")
        self.assertNotIn("--no-keep-alive", command)
        command = GENERATORS["throng"].command(Load("work", 1, False, 1, "POST", 1.5, 0.5), 80, 7)
        self.assertIn("--no-keep-alive", command)
        self.assertEqual(command[command.index("--method") + 1], "POST")
        self.assertNotIn("--pipeline", command)

    def test_figures_of_ours(self) -> None:
        report = {
            "result": {"requests": 10, "requests_per_s": 5.0, "requests_per_server_cpu_s": 50.0, "measured_s": 2.0},
            "errors": {"timeouts": 2, "resets": 1, "first": "a timeout"},
            "server": {"memory": {"rss_bytes": 3_000_000}},
            "generator": {"cpu": {"cpu_s": 1.0}},
            "verdict": {},
        }
        result = GENERATORS["throng"].read(json.dumps(report))
        self.assertEqual((result.per_cpu_s, result.errors, result.rss_mb), (50.0, 3, 3.0))
        self.assertEqual(result.generator_share, 0.5)
        report["result"]["requests_per_server_cpu_s"] = None
        with self.assertRaisesRegex(CellFailed, "a timeout"):
            GENERATORS["throng"].read(json.dumps(report))

    def test_figures_of_wrk(self) -> None:
        text = "  1000 requests in 500.00ms, 1.00MB read\n  Socket errors: connect 1, read 2, write 3, timeout 4\n"
        result = GENERATORS["wrk"].read(text + "  Non-2xx or 3xx responses: 5\n", 0.25, 0.1, 9.0)
        self.assertEqual((result.per_s, result.per_cpu_s, result.errors), (2000.0, 4000.0, 15))
        with self.assertRaises(CellFailed):
            GENERATORS["wrk"].read("  0 requests in 1.00s, 0 read\n", 0.25, 0.1, 9.0)


class Tables(unittest.TestCase):
    def test_each_figure_of_a_round_is_a_row(self) -> None:
        both = [cell("throng", 1, 110.0), cell("throng", 2, None), cell("nginx", 1, 100.0)]
        document = json.loads(tables.report(both, "nginx"))
        self.assertEqual((document["servers"], document["baseline"]), (["Throng", "nginx"], "nginx"))
        first = [row for row in document["rows"] if row["table"] == tables.TABLES[0][0]]
        self.assertEqual([row["value"] for row in first], [110.0, 100.0])
        self.assertEqual(first[0]["work"], "blank, 100 conns, keep-alive")
        self.assertIn("throng, blank-100-keep: died", document["remarks"][0])
        self.assertEqual(document["remarks"][-1], "No errors.")

    def test_errors_are_told(self) -> None:
        text = tables.report([cell("throng", 1, 100.0, 2), cell("throng", 2, 100.0, 3)], "nginx")
        self.assertIn("- throng, blank-100-keep: 5", text)

    def test_every_case_has_a_name_of_its_own(self) -> None:
        names = [case.name for case in cells.cases()]
        self.assertEqual(len(names), len(set(names)))
        self.assertIn("blank-100-p16", names)
        self.assertEqual(sum(not case.keep_alive for case in cells.cases()), 8)

    def test_nginx_parses_no_json(self) -> None:
        idle = {peer.name for peer in PEERS.values() if not cells.takes_part(peer, Case("work", 1, True))}
        self.assertEqual(idle, {"nginx"})


if __name__ == "__main__":
    unittest.main()
