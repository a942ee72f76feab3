"""The HTTP servers that are compared, blank and at work: how each is built, started and named.

As in harness/peers.py, `prepare` raises Missing with one line when something is not there.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.paths import BENCH, BIN, BUILD, WORKSPACE, lab_binary
from harness.peers import (
    Missing,
    bun_binary,
    npm_install,
    npm_version,
    run_tool,
    throng_version,
    uws_sources,
)

FOLDER = BENCH / "http" / "peers"
TARGET = BUILD / "http"  # what is built or written for these peers alone


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    command: Callable[[int, str], list[str]]  # port, and blank or work
    prepare: Callable[[], None]
    ready: Callable[[], bool]
    version: Callable[[], str]
    works: bool = True  # False: it cannot parse JSON
    method: str = "GET"  # of requests with a body: the contract's is GET, which not everyone lets have one
    env: dict[str, str] = field(default_factory=dict)


def binary(name: str) -> Callable[[int, str], list[str]]:
    return lambda port, mode: [str(BIN / name), str(port), mode]


def said(command: list[str], pattern: str) -> str:
    """The version in what a program says of itself."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return "unknown"
    found = re.search(pattern, done.stdout + done.stderr)
    return found[1] if found else "unknown"


# Our own server.


def prepare_throng() -> None:
    packages = ["--package", "throng-cli", "--package", "throng-lab"]
    run_tool(["cargo", "build", "--profile", "dist", *packages], WORKSPACE)


def throng_command(port: int, mode: str) -> list[str]:
    return [str(lab_binary()), "serve-netbench", mode, "--listen", f"127.0.0.1:{port}", "--shards", "1"]


# uWebSockets in C++, with simdjson for the JSON.


def prepare_uws() -> None:
    if not Path("/usr/include/simdjson.h").exists():
        raise Missing("simdjson is not installed (Debian: apt install libsimdjson-dev)")
    root, _ = uws_sources()
    objects = TARGET / "uwebsockets"
    shutil.rmtree(objects, ignore_errors=True)
    objects.mkdir(parents=True)
    BIN.mkdir(parents=True, exist_ok=True)
    flags = ["-O3", "-march=native", "-flto=1", "-DLIBUS_NO_SSL", "-DUWS_NO_ZLIB"]
    flags += [f"-I{root}/src", f"-I{root}/uSockets/src"]
    sockets = [*root.glob("uSockets/src/*.c"), *root.glob("uSockets/src/eventing/*.c")]
    run_tool(["gcc", "-std=c11", *flags, "-c", *map(str, sockets)], objects)
    command = ["g++", "-std=c++20", *flags, "-o", str(BIN / "uwebsockets-http"), str(FOLDER / "uwebsockets/server.cpp")]
    run_tool([*command, *map(str, objects.glob("*.o")), "-lsimdjson"], objects)


# bun, node.


def bun_command(port: int, mode: str) -> list[str]:
    return [bun_binary(), str(FOLDER / "bun/server.js"), str(port), mode]


def bun_is_there() -> bool:
    try:
        return bool(bun_binary())
    except Missing:
        return False


def node_is_there() -> None:
    if shutil.which("node") is None:
        raise Missing("node is not installed")


# hyper.

HYPER = TARGET / "cargo" / "release" / "peer-hyper"


def prepare_hyper() -> None:
    environment = {"CARGO_TARGET_DIR": str(TARGET / "cargo")}
    run_tool(["cargo", "build", "--release", "--locked"], FOLDER / "hyper", environment)


def hyper_version() -> str:
    lock = (FOLDER / "hyper/Cargo.lock").read_text()
    found = re.search(r'name = "hyper"\nversion = "([^"]+)"', lock)
    return found[1] if found else "unknown"


# Go.


def prepare_go() -> None:
    BIN.mkdir(parents=True, exist_ok=True)
    run_tool(["go", "build", "-o", str(BIN / "net-http"), "."], FOLDER / "go")


# nginx.


def nginx() -> str | None:
    return shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


def nginx_is_there() -> None:
    if nginx() is None:
        raise Missing("nginx is not installed (Debian: apt install nginx)")


def nginx_command(port: int, _mode: str) -> list[str]:
    """One process that answers without looking anything up; everything it writes is in a folder of ours."""
    folder = TARGET / "nginx"
    folder.mkdir(parents=True, exist_ok=True)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "\n".join(f"  {kind}_temp_path {folder}/{kind};" for kind in kinds)
    configuration = folder / "nginx.conf"
    text = (FOLDER / "nginx/nginx.conf").read_text()
    configuration.write_text(text.replace("PORT", str(port)).replace("PATHS", paths).replace("FOLDER", str(folder)))
    return [nginx() or "nginx", "-e", "stderr", "-p", str(folder), "-c", str(configuration)]


# mORMot 2, for Free Pascal.

MORMOT = "https://github.com/synopse/mORMot2"
MORMOT_COMMIT, MORMOT_DATE = "b900affa22c876b255f8db80bd4af9e2d38dee34", "2026-08-22"


def prepare_mormot() -> None:
    """The objects that are not in the repository are hashes and a codec, which a plain answer does not need."""
    if shutil.which("fpc") is None:
        raise Missing("Free Pascal is not installed (Debian: apt install fp-compiler fp-units-net fp-units-misc)")
    BIN.mkdir(parents=True, exist_ok=True)
    folder = TARGET / "mormot2"
    sources, units = folder / "src", folder / "units"
    if not sources.exists():
        folder.mkdir(parents=True, exist_ok=True)
        run_tool(["git", "init", "--quiet"], folder)
        run_tool(["git", "fetch", "--quiet", "--depth", "1", MORMOT, MORMOT_COMMIT], folder)
        run_tool(["git", "checkout", "--quiet", "FETCH_HEAD"], folder)
    units.mkdir(exist_ok=True)
    leave_out(sources / "crypt/mormot.crypt.core.pas", ("CRC32C_X64", "SHA512_X64"))
    leave_out(sources / "mormot.defines.inc", ("LIBDEFLATESTATIC",))
    flags = ["-MDelphi", "-Sci", "-O3", "-Xs", "-XX", "-CX", "-dFPC_X64MM", "-dFPCMM_SERVER", f"-FU{units}"]
    flags += [f"-Fi{sources}{part}" for part in ("", "/core", "/net", "/lib")]
    flags += [f"-Fu{sources}{part}" for part in ("/core", "/lib", "/net", "/crypt")]
    run_tool(["fpc", *flags, f"-o{BIN / 'mormot-http'}", "server.pas"], FOLDER / "mormot")


def leave_out(path: Path, names: tuple[str, ...]) -> None:
    text = path.read_text(errors="surrogateescape")
    for name in names:
        text = text.replace(f"{{$define {name}}}", f"{{.$define {name}}}")
    path.write_text(text, errors="surrogateescape")


def mormot_version() -> str:
    return f"2 of {MORMOT_DATE} (fpc {said(['fpc', '-iV'], r'([0-9.]+)')})"


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("throng", "Throng", throng_command, prepare_throng, lambda: lab_binary().exists(), throng_version),
        Peer(
            "uwebsockets",
            "uWebSockets (C++)",
            binary("uwebsockets-http"),
            prepare_uws,
            (BIN / "uwebsockets-http").exists,
            lambda: "20.58.0",
        ),
        Peer(
            "bun",
            "bun (uWebSockets inside)",
            bun_command,
            lambda: npm_install("bun"),
            bun_is_there,
            lambda: npm_version("bun", "bun"),
            method="POST",  # Bun.serve drops the body of a GET
        ),
        Peer(
            "hyper",
            "hyper, one thread",
            lambda port, mode: [str(HYPER), str(port), mode],
            prepare_hyper,
            HYPER.exists,
            hyper_version,
        ),
        Peer(
            "hyper-multi",
            "hyper, threads",
            lambda port, mode: [str(HYPER), str(port), mode, "multi"],
            prepare_hyper,
            HYPER.exists,
            hyper_version,
        ),
        Peer(
            "nginx",
            "nginx",
            nginx_command,
            nginx_is_there,
            lambda: nginx() is not None,
            lambda: said([nginx() or "nginx", "-v"], r"nginx/(\S+)"),
            works=False,
        ),
        Peer(
            "mormot",
            "mORMot 2",
            binary("mormot-http"),
            prepare_mormot,
            (BIN / "mormot-http").exists,
            mormot_version,
        ),
        Peer(
            "go",
            "Go net/http",
            binary("net-http"),
            prepare_go,
            (BIN / "net-http").exists,
            lambda: said(["go", "version"], r"go(\d\S+)"),
            env={"GOMAXPROCS": "1"},
        ),
        Peer(
            "node",
            "Node http",
            lambda port, mode: ["node", str(FOLDER / "node/server.js"), str(port), mode],
            node_is_there,
            lambda: shutil.which("node") is not None,
            lambda: said(["node", "--version"], r"v(\S+)"),
        ),
    )
}


def versions(peers: list[Peer]) -> dict[str, str]:
    return {peer.name: peer.version() for peer in peers}
