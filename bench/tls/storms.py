"""Handshakes of TLS: storms, overload, replayed ClientHellos, and those of clients that prefer AES-256."""

import json
import multiprocessing
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import time
from pathlib import Path

CLIENTS = Path(__file__).resolve().parent / "clients"

# Handshakes of the overload are slow for the server and not for its clients: with a key of RSA its signature takes
# milliseconds. So one core of clients is enough for three times of what a core serves.
RSA = ["rsa:4096"]


def when_idle():
    """Lets a generator run when nothing else does, so that it cannot delay the one that measures sessions."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def sessions_p99(bench, server, *, in_storm: bool) -> float:
    """The p99 of echoes of 1,000 sessions, ten messages a second each, in milliseconds."""
    storm = Storm(bench, server) if in_storm else None
    try:
        words = ["-c", "1000", "--rate", "10", "-w", "2s", "-d", bench.args.storm]
        report = bench.load(server, "echo", *words, "--setup-timeout", "60s")
    finally:
        if storm:
            storm.stop()
    if report["errors"]["connections_lost"] or report["errors"]["missing_answers"]:
        raise RuntimeError(f"sessions suffered: {report['errors']}")
    return report["result"]["latency"]["p99_us"] / 1000


class Storm:
    """5,000 clients that connect at once, again and again."""

    def __init__(self, bench, server):
        url = f"{server.scheme}://127.0.0.1:{server.port}/echo"
        tls = ["--ca", str(bench.chain)] if server.scheme == "wss" else []
        storm = ["-c", "5000", "--window", "5000", "--hold", "100ms", "--setup-timeout", "60s", "--json"]
        self.command = [str(bench.throng), "bench", "idle", url, *storm, *tls]
        self.log = bench.log
        self.running = self.begin()

    def begin(self):
        return subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log, preexec_fn=when_idle)

    def stop(self):
        """Ends it. Every client has to have got in."""
        report = json.loads(self.running.communicate(timeout=120)[0])
        if self.running.returncode != 0 or report["setup"]["connections"] != 5000:
            raise RuntimeError(f"not all of a storm got in: {report['setup']}, {report['errors']}")


def sessions_in_storm(bench, server) -> float:
    """By how much a storm of 5,000 raises the p99 of 1,000 sessions, in milliseconds: the median of three."""
    differences = []
    for _ in range(3):
        calm = sessions_p99(bench, server, in_storm=False)
        differences.append(sessions_p99(bench, server, in_storm=True) - calm)
    return statistics.median(differences)


def client_hello(bench) -> bytes:
    """The first message of a client, for any number of connections."""
    context = ssl.create_default_context(cafile=str(bench.chain))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def pending(bench, server, user_memory, count: int) -> tuple[float, float]:
    """Memory of each of so many handshakes that clients do not go on with, and what is kept of it when they are gone."""
    hello = client_hello(bench)
    # What a server allocates for its first handshake is not counted.
    memory_of_pending(server, hello, user_memory, 100)
    before = user_memory(server.pids)
    most = memory_of_pending(server, hello, user_memory, count)
    kept = before
    for _ in range(50):
        time.sleep(0.2)
        kept = user_memory(server.pids)
        if kept <= before:
            break
    return (most - before) / count, (kept - before) / count


def memory_of_pending(server, hello: bytes, user_memory, count: int) -> int:
    """The server's memory while so many clients have its answer and say nothing more."""
    clients = []
    try:
        for number in range(count):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            client.sendall(hello)
            clients.append(client)
            # Those of the queue of the listener would wait for a second.
            if number % 500 == 499:
                client.recv(1)
        for client in clients:
            if not client.recv(1):
                raise RuntimeError("a handshake was given up")
        return user_memory(server.pids)
    finally:
        for client in clients:
            client.close()


class Replay:
    """A process that sends one ClientHello so many times a second from another address, and goes on with none."""

    PER_S = 4000

    def __init__(self, bench, server):
        words = (client_hello(bench), server.port)
        self.process = multiprocessing.get_context("fork").Process(target=self.run, args=words, daemon=True)
        self.process.start()

    def run(self, hello: bytes, port: int):
        began, sent, open_ones = time.monotonic(), 0, []
        while True:
            while sent < (time.monotonic() - began) * self.PER_S:
                client = socket.socket()
                client.bind(("127.0.0.2", 0))
                client.connect(("127.0.0.1", port))
                client.sendall(hello)
                sent += 1
                open_ones.append(client)
                # The server's answer has come by then.
                if len(open_ones) > self.PER_S / 10:
                    open_ones.pop(0).close()
            time.sleep(0.001)

    def check(self):
        """Without the replay, a measurement would show a server at rest."""
        if not self.process.is_alive():
            raise RuntimeError(f"the replay of ClientHellos has ended: exit code {self.process.exitcode}")

    def stop(self):
        self.process.kill()
        self.process.join()


def beside_replay(bench, server, measure) -> float:
    """What `measure` finds while ClientHellos are replayed."""
    replay = Replay(bench, server)
    try:
        found = measure(bench, server)
        replay.check()
        return found
    finally:
        replay.stop()


def handshake_p99(bench, server) -> float:
    """The p99 of a connect, a handshake, an upgrade and an echo, 100 a second, in milliseconds."""
    report = bench.load(server, "connect", "-d", bench.args.storm, "--rate", "100")
    return report["result"]["total"]["p99_us"] / 1000


def echo_p99(bench, server) -> float:
    """The p99 of an echo in 100 sessions, ten messages a second each, in milliseconds."""
    report = bench.load(server, "echo", "-c", "100", "--rate", "10", "-d", bench.args.storm)
    return report["result"]["latency"]["p99_us"] / 1000


def aes256_handshakes(bench, server) -> float:
    """Handshakes of clients that prefer AES-256, as OpenSSL does, by the server's CPU-second."""
    context = ssl.create_default_context(cafile=str(bench.chain))
    began, before, count = time.monotonic(), cpu_s(server.pids), 0
    while time.monotonic() - began < float(bench.args.duration.removesuffix("s")):
        with socket.create_connection(("127.0.0.1", server.port)) as plain:
            context.wrap_socket(plain, server_hostname="localhost").close()
        count += 1
    return count / (cpu_s(server.pids) - before)


def cpu_s(pids: list[int]) -> float:
    """The CPU seconds that these processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def overload(bench, server) -> float:
    """Handshakes that are completed at three times the rate that a server can serve, per second and of that rate.
    Clients give up after five seconds."""
    program = bench.folder / "clients"
    if not program.exists():
        go = shutil.which("go") or "/usr/local/go/bin/go"
        subprocess.run([go, "build", "-o", str(program), "."], cwd=CLIENTS, check=True)

    def run(*words: str) -> dict:
        command = [str(program), "-ca", str(bench.chain), *words, f"127.0.0.1:{server.port}"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    capacity = run("-clients", "32", "-seconds", "5")["served_per_second"]
    flood = run("-rate", str(3 * capacity), "-seconds", bench.args.overload, "-deadline", "5s")
    print(f"capacity {capacity:.0f}/s; at three times of it: {flood}", file=bench.log, flush=True)
    if flood["missed"]:
        raise RuntimeError(f"the generator was too slow: {flood}")
    return flood["served_per_second"] / capacity
