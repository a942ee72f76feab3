"""Publishes to many: right ones pass and are counted, wrong ones are named."""

import json
import os
import subprocess
import unittest

from fakes import Channels, Generates, peers


class Publishing(Generates, unittest.TestCase):
    def run_mode(self, mode: str, peer: Channels, *arguments: str) -> tuple[int, dict]:
        self.addCleanup(peer.close)
        command = [str(peers.LOADGEN), mode, "--port", str(peer.port), "--path", "/ws/x", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, json.loads(done.stdout)

    def assert_named(self, why: str, outcome: tuple[int, dict]) -> None:
        code, result = outcome
        self.assertEqual(code, 1)
        self.assertIn(why, result.get("error", ""))


def twice(number: int, members: int, message: bytes) -> list[list[bytes]]:
    """The third publish reaches the first member twice."""
    return [[message] * (2 if number == 2 and i == 0 else 1) for i in range(members)]


def damaged(number: int, members: int, message: bytes) -> list[list[bytes]]:
    """The second publish reaches the last member with its last byte flipped."""
    wrong = message[:-1] + bytes([message[-1] ^ 1])
    return [[wrong if number == 1 and i == members - 1 else message] for i in range(members)]


class Broadcast(Publishing):
    OPTIONS = ("--connections", "12", "--warmup", "0.1", "--publishes", "4")

    def test_it_passes_with_one_and_with_several_generator_processes(self) -> None:
        for processes in ("1", "3"):
            code, result = self.run_mode("broadcast", Channels(), *self.OPTIONS, "--processes", processes)
            self.assertEqual((code, result["publishes"], result["servers"]), (0, 4, 1))
            self.assertTrue(0 < result["best_wall_ms"] <= result["wall_ms"] <= result["worst_wall_ms"] < 5000, result)

    def test_the_wall_time_is_the_arrival_not_the_reading(self) -> None:
        # The generator sleeps 100 ms when it knows no server process; the messages arrive long before.
        _, result = self.run_mode("broadcast", Channels(), "--connections", "1", "--publishes", "5")
        self.assertLess(result["best_wall_ms"], 90)

    def test_a_message_that_comes_twice_is_named(self) -> None:
        self.assert_named("not the expected message", self.run_mode("broadcast", Channels(twice), *self.OPTIONS))
        # In its own process, too, where another one holds the other members.
        self.assert_named("not the expected message", self.run_mode("broadcast", Channels(twice), *self.OPTIONS, "--processes", "2"))

    def test_a_damaged_message_is_named(self) -> None:
        self.assert_named("damaged", self.run_mode("broadcast", Channels(damaged), *self.OPTIONS))

    def test_one_server_that_is_said_to_be_two_is_named(self) -> None:
        pid = str(os.getpid())
        outcome = self.run_mode("broadcast", Channels(), *self.OPTIONS, "--server-pid", pid, "--server-pid", pid)
        self.assert_named("1 servers answer", outcome)


class OpenLoop(Publishing):
    OPTIONS = ("--connections", "12", "--channels", "4", "--rate", "100", "--warmup", "0.2", "--duration", "0.5")

    def test_every_delivery_of_the_counted_time_is_recorded(self) -> None:
        code, result = self.run_mode("channels", Channels(), *self.OPTIONS)
        self.assertEqual((code, result["lost"]), (0, 0))
        self.assertEqual((result["expected"], result["recorded"]), (70 * 3, 50 * 3))

    def test_loss_is_counted(self) -> None:
        def last_one_lost(number: int, members: int, message: bytes) -> list[list[bytes]]:
            return [[] if number >= 68 and i == 0 else [message] for i in range(members)]

        code, result = self.run_mode("channels", Channels(last_one_lost), *self.OPTIONS)
        self.assertEqual((code, result["lost"]), (0, 2))

    def test_a_gap_is_named(self) -> None:
        def gap(number: int, members: int, message: bytes) -> list[list[bytes]]:
            return [[] if number == 5 and i == 0 else [message] for i in range(members)]

        self.assert_named("not the expected message", self.run_mode("channels", Channels(gap), *self.OPTIONS))

    def test_channels_that_are_mixed_up_are_named(self) -> None:
        class OneForAll(Channels):
            def _join(self, connection, path: str) -> None:
                super()._join(connection, "/ws/same")

        self.assert_named("not the expected message", self.run_mode("channels", OneForAll(), *self.OPTIONS))

    def test_a_member_that_joined_the_wrong_number_of_channels_is_refused(self) -> None:
        outcome = self.run_mode("channels", Channels(), *self.OPTIONS, "--channels", "5")
        self.assert_named("--channels", outcome)


class Slow(Publishing):
    OPTIONS = ("--connections", "3", "--size", "1024", "--receive-buffer", "4096", "--references", "900")

    def test_what_waits_inside_is_counted_without_what_lies_in_the_kernel(self) -> None:
        code, result = self.run_mode("slow", Channels(), *self.OPTIONS, "--server-pid", str(os.getpid()))
        self.assertEqual((code, result.get("error")), (0, None))
        self.assertGreaterEqual(result["references"], 900)
        self.assertGreater(result["kernel_bytes"], 0)
        in_kernel = result["kernel_bytes"] / 1028
        self.assertAlmostEqual(result["publishes"] * 3 - in_kernel, result["references"], delta=3)

    def test_a_server_that_drops_instead_of_queueing_is_named(self) -> None:
        def forgetful(number: int, members: int, message: bytes) -> list[list[bytes]]:
            return [[] if number > 310 else [message] for _ in range(members)]

        outcome = self.run_mode("slow", Channels(forgetful), *self.OPTIONS, "--server-pid", str(os.getpid()))
        self.assert_named("nothing for 5 s", outcome)


if __name__ == "__main__":
    unittest.main()
