"""The servers that are compared: how each is built, started and named.

A peer is one entry of PEERS at the end. `prepare` builds it and raises Missing with one line when
something is not there; `command` starts it on a port.
"""

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .paths import BENCH, BIN, BUILD, LOADGEN, PEERS as FOLDER, WORKSPACE, throng_binary

C_FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra"]


class Missing(Exception):
    """What is not there, and how to get it, in one line."""


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    command: Callable[[int], list[str]]
    prepare: Callable[[], None]
    ready: Callable[[], bool]
    version: Callable[[], str]
    raw: bool = False  # a bare TCP echo: no WebSocket, no text, no broadcast
    channels: bool = True
    # With permessage-deflate, without context takeover; None: it has none.
    deflate: Callable[[int], list[str]] | None = None
    # The same with the context of earlier messages on both sides; None: it has none.
    context: Callable[[int], list[str]] | None = None
    shares_port: bool = False  # several processes can listen on one port
    only: frozenset[str] | None = None  # a variant made for these tests; None: all
    variant_of: str | None = None  # whose settings a variant takes
    env: dict[str, str] = field(default_factory=dict)
    # How to start it under valgrind; None: it does not run there (a JIT, or Go's runtime).
    callgrind: Callable[[int], list[str]] | None = None

    @property
    def family(self) -> str:
        return self.variant_of or self.name


def run_tool(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> str:
    """Runs a build step; on failure its last line of complaint is the message."""
    if shutil.which(command[0]) is None:
        raise Missing(f"{command[0]} is not installed")
    done = subprocess.run(
        ["nice", "-n", "10", *command], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True
    )
    if done.returncode != 0:
        complaints = [line for line in (done.stderr + done.stdout).splitlines() if "rror" in line]
        raise Missing(f"`{' '.join(command[:3])} ...` failed: {(complaints or ['no message'])[0].strip()}")
    return done.stdout


def prepare_loadgen() -> None:
    BIN.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(path) for path in (BENCH / "loadgen").glob("*.c"))
    try:
        run_tool(["gcc", *C_FLAGS, "-o", str(LOADGEN), *sources, "-lz"], BENCH)
    except Missing as why:
        if "zlib.h" in str(why) or "-lz" in str(why):
            raise Missing("zlib's header is not installed (Debian: apt install zlib1g-dev)") from None
        raise


# Our own server.


def prepare_throng() -> None:
    run_tool(["cargo", "build", "--profile", "dist", "--package", "throng-cli"], WORKSPACE)


def throng_command(port: int, *, shards: int = 1) -> list[str]:
    return [str(throng_binary()), "serve", "--listen", f"127.0.0.1:{port}", "--shards", str(shards)]


def throng_callgrind(port: int) -> list[str]:
    # Watched as it is served by default. But under valgrind on a busy machine a turn takes long enough for a stall of 50 ms,
    # after which the clock is read for each message: 30 instructions that no served message costs.
    return [*throng_command(port), "--set", "stall_warning=1m"]


def throng_deflate(mode: str) -> Callable[[int], list[str]]:
    return lambda port: [*throng_command(port), "--deflate", mode]


@functools.cache
def throng_can_deflate() -> bool:
    if not throng_binary().exists():
        return False
    done = subprocess.run([str(throng_binary()), "serve", "--help"], capture_output=True, text=True)
    return "--deflate" in done.stdout


def throng_version() -> str:
    done = subprocess.run([str(throng_binary()), "--version"], capture_output=True, text=True)
    return done.stdout.strip().removeprefix("throng ")


# The bare echoes.

EPOLL = BIN / "epoll_echo"
URING = BIN / "uring_echo"


def prepare_bare(binary: Path) -> None:
    BIN.mkdir(parents=True, exist_ok=True)
    run_tool(["gcc", *C_FLAGS, "-o", str(binary), f"bare/{binary.name}.c"], BENCH)


# uWebSockets, in C++.

UWS = BIN / "uwebsockets"
UWS_DEFLATE = BIN / "uwebsockets-deflate"  # apart, so that the plain one stays as it was without zlib
UWS_PORTABLE = BIN / "uwebsockets-portable"  # without AVX-512, which valgrind does not know
UWS_TLS = BIN / "uwebsockets-tls"


def uws_sources() -> tuple[Path, str]:
    """The sources inside a crate on crates.io, and their version."""
    folder = FOLDER / "uwebsockets"
    metadata = json.loads(
        run_tool(["cargo", "metadata", "--format-version", "1"], folder, {"CARGO_TARGET_DIR": str(BUILD / "cargo")})
    )
    for package in metadata["packages"]:
        if package["name"] == "libuwebsockets-sys":
            return Path(package["manifest_path"]).parent / "uWebSockets", "20.58.0"
    raise Missing("libuwebsockets-sys is not among the dependencies of peers/uwebsockets/Cargo.toml")


def prepare_uws() -> None:
    root, version = uws_sources()
    build_uws(root, UWS)
    build_uws(root, UWS_DEFLATE, zlib=True)
    build_uws(root, UWS_PORTABLE, arch="x86-64-v3")
    (BUILD / "uwebsockets" / "version").write_text(version)


def build_uws(root: Path, binary: Path, *, arch: str = "native", zlib: bool = False, tls: bool = False) -> None:
    """With the flags of the project's own Makefile; TLS is that of the system's OpenSSL."""
    objects = BUILD / "uwebsockets" / binary.name
    shutil.rmtree(objects, ignore_errors=True)
    objects.mkdir(parents=True)
    flags = ["-O3", f"-march={arch}", "-flto=1", "-DLIBUS_USE_OPENSSL" if tls else "-DLIBUS_NO_SSL"]
    flags += [*([] if zlib else ["-DUWS_NO_ZLIB"]), f"-I{root}/src", f"-I{root}/uSockets/src"]
    sockets = [*root.glob("uSockets/src/*.c"), *root.glob("uSockets/src/eventing/*.c")]
    sockets += root.glob("uSockets/src/crypto/*.c") if tls else []
    cpp = [FOLDER / "uwebsockets/server.cpp", *(root.glob("uSockets/src/crypto/*.cpp") if tls else [])]
    libraries = [*(["-lz"] if zlib else []), *(["-lssl", "-lcrypto"] if tls else [])]
    run_tool(["gcc", "-std=c11", *flags, "-c", *map(str, sockets)], objects)
    run_tool(
        ["g++", "-std=c++20", *flags, "-o", str(binary), *map(str, cpp)]
        + [str(path) for path in objects.glob("*.o")]
        + libraries,
        objects,
    )


def prepare_uws_tls() -> None:
    BIN.mkdir(parents=True, exist_ok=True)
    build_uws(uws_sources()[0], UWS_TLS, tls=True)


def uws_version() -> str:
    return (BUILD / "uwebsockets" / "version").read_text()


# JavaScript.


def npm_install(folder: str) -> None:
    run_tool(["npm", "install", "--no-package-lock", "--ignore-scripts"], FOLDER / folder)


def npm_version(folder: str, package: str) -> str:
    manifest = FOLDER / folder / "node_modules" / package / "package.json"
    return json.loads(manifest.read_text())["version"]


def bun_binary() -> str:
    """npm installs the builds for every libc and instruction set that may fit; take one that runs."""
    for candidate in sorted((FOLDER / "bun/node_modules/@oven").glob("*/bin/bun")):
        if subprocess.run([str(candidate), "--version"], capture_output=True).returncode == 0:
            return str(candidate)
    raise Missing("no @oven/bun-* package for this machine was installed")


def prepare_bun() -> None:
    npm_install("bun")
    bun_binary()


def node_version() -> str:
    node = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
    return f"{npm_version('node-ws', 'ws')} (node {node.lstrip('v')})"


# Go.

GWS = BIN / "gws"


def prepare_gws() -> None:
    BIN.mkdir(parents=True, exist_ok=True)
    run_tool(["go", "build", "-o", str(GWS), "."], FOLDER / "gws")


def gws_version() -> str:
    found = re.search(r"lxzan/gws v(\S+)", (FOLDER / "gws/go.mod").read_text())
    return found[1] if found else "unknown"


# Rust.


def rust_peer(name: str, title: str, channels: bool = True, deflate: bool = False) -> Peer:
    binary = BUILD / "cargo" / "release" / f"peer-{name}"

    def prepare() -> None:
        run_tool(
            ["cargo", "build", "--release", "--locked", "--package", f"peer-{name}"],
            BENCH,
            {"CARGO_TARGET_DIR": str(BUILD / "cargo")},
        )

    def version() -> str:
        lock = (BENCH / "Cargo.lock").read_text()
        found = re.search(rf'name = "{name}"\nversion = "([^"]+)"', lock)
        return found[1] if found else "unknown"

    def command(port: int) -> list[str]:
        return [str(binary), str(port)]

    return Peer(
        name,
        title,
        command,
        prepare,
        binary.exists,
        version,
        channels=channels,
        deflate=(lambda port: [*command(port), "deflate"]) if deflate else None,
        # By its own defaults it keeps what the client does not ask it to forget.
        context=(lambda port: [*command(port), "deflate"]) if deflate else None,
        callgrind=command,
    )


def bun_command(port: int) -> list[str]:
    return [bun_binary(), str(FOLDER / "bun/server.js"), str(port)]


def node_command(port: int) -> list[str]:
    return ["node", str(FOLDER / "node-ws/server.js"), str(port)]


def before(binary: Path) -> Peer:
    """Another build of our server, usually the one before a change."""

    def command(port: int) -> list[str]:
        return [str(binary), "serve", "--listen", f"127.0.0.1:{port}", "--shards", "1"]

    return Peer("before", "Throng before", command, lambda: None, binary.exists, lambda: str(binary))


def throng_peer(name: str, title: str, command: Callable[[int], list[str]], **more) -> Peer:
    return Peer(name, title, command, prepare_throng, lambda: throng_binary().exists(), throng_version, **more)


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        throng_peer(
            "throng",
            "Throng",
            throng_command,
            deflate=throng_deflate("shared"),
            context=throng_deflate("window:10"),
            shares_port=True,
            callgrind=throng_callgrind,
        ),
        throng_peer(
            "throng-2shards",
            "Throng, 2 shards",
            lambda port: throng_command(port, shards=2),
            only=frozenset({"broadcast-2shards"}),
            variant_of="throng",
        ),
        throng_peer(
            "throng-window10",
            "Throng, window 10",
            throng_command,
            deflate=throng_deflate("window:10"),
            only=frozenset({"deflate1k", "broadcast-deflate"}),
            variant_of="throng",
        ),
        throng_peer(
            "throng-window15",
            "Throng, window 15",
            throng_command,
            context=throng_deflate("window:15"),
            only=frozenset({"context256", "context1k", "context-used"}),
            variant_of="throng",
        ),
        Peer(
            "epoll",
            "bare epoll echo",
            lambda port: [str(EPOLL), str(port)],
            lambda: prepare_bare(EPOLL),
            EPOLL.exists,
            lambda: "",
            raw=True,
            channels=False,
            callgrind=lambda port: [str(EPOLL), str(port)],
        ),
        Peer(
            "uring",
            "bare io_uring echo",
            lambda port: [str(URING), str(port)],
            lambda: prepare_bare(URING),
            URING.exists,
            lambda: "",
            raw=True,
            channels=False,
            only=frozenset({"echo100", "echo100p16", "echo100c10k", "echo1k"}),
        ),
        Peer(
            "uwebsockets",
            "uWebSockets (C++)",
            lambda port: [str(UWS), str(port)],
            prepare_uws,
            UWS.exists,
            uws_version,
            deflate=lambda port: [str(UWS_DEFLATE), str(port), "deflate"],
            context=lambda port: [str(UWS_DEFLATE), str(port), "context"],
            callgrind=lambda port: [str(UWS_PORTABLE), str(port)],
        ),
        Peer(
            "bun",
            "bun",
            bun_command,
            prepare_bun,
            lambda: (FOLDER / "bun/node_modules/@oven").exists(),
            lambda: npm_version("bun", "bun"),
            deflate=lambda port: [*bun_command(port), "deflate"],
            context=lambda port: [*bun_command(port), "context"],
        ),
        rust_peer("fastwebsockets", "fastwebsockets", channels=False),
        rust_peer("sockudo-ws", "sockudo-ws", deflate=True),
        rust_peer("tokio-tungstenite", "tokio-tungstenite"),
        Peer(
            "gws",
            "gws (Go)",
            lambda port: [str(GWS), str(port)],
            prepare_gws,
            GWS.exists,
            gws_version,
            deflate=lambda port: [str(GWS), str(port), "deflate"],
            context=lambda port: [str(GWS), str(port), "context"],
            env={"GOMAXPROCS": "1"},
        ),
        Peer(
            "node-ws",
            "Node ws",
            node_command,
            lambda: npm_install("node-ws"),
            lambda: (FOLDER / "node-ws/node_modules/ws").exists(),
            node_version,
            deflate=lambda port: [*node_command(port), "deflate"],
            context=lambda port: [*node_command(port), "context"],
        ),
    )
}
