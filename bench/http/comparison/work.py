"""The benchmark's document and its answer, and whether a server can do what it is measured for."""

import json
import re
import socket

DOCUMENT = {
    "product": "test",
    "requestId": "{BC6B8989-DAB7-484E-9AD3-F7C34A800A1A}",
    "group": {
        "kind": "clients",
        "default": True,
        "balance": 109240.59,
        "dates": [
            "2020-01-12T10:53:17.773Z",
            "2020-11-10T06:47:04.462Z",
            "2020-01-01T00:00:00.007Z",
            "2020-03-14T22:36:33.316Z",
            "2020-04-09T14:47:25.082Z",
            "2020-09-02T03:41:33.744Z",
            "2020-04-26T07:44:07.926Z",
            "2020-02-29T01:19:41.793Z",
            "2020-05-15T20:48:28.880Z",
            "2020-06-04T08:54:07.931Z",
        ],
    },
}

# Another one, so that a server that knows the answer by heart is found out.
OTHER = {
    "product": "other",
    "requestId": "{1}",
    "group": {"kind": "x", "default": False, "balance": 0.25, "dates": ["1999-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z"]},
}


class Wrong(Exception):
    """A server does not answer as it must."""


class CutShort(Wrong):
    """The connection ended before the answer did."""


ATTEMPTS = 3  # mORMot at times ends a connection that follows at once on another


def pretty(document: dict) -> bytes:
    """As the suite sends it: indented."""
    return json.dumps(document, indent="\t").encode()


def answer(document: dict) -> dict:
    """In UTC and of one form, dates sort as texts."""
    group = document["group"]
    client = {"balance": group["balance"], "minDate": min(group["dates"]), "maxDate": max(group["dates"])}
    return {"product": document["product"], "requestId": document["requestId"], "client": client}


def check(port: int, mode: str, method: str) -> None:
    """Raises Wrong unless the server answers as the contract says: twice over one connection, then closing."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return attempt_check(port, mode, method)
        except CutShort:
            if attempt == ATTEMPTS:
                raise


def attempt_check(port: int, mode: str, method: str) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        for document, close in ((DOCUMENT, False), (OTHER, True)):
            head, body = exchange(connection, request(mode, method, document, close))
            check_answer(mode, document, head, body)
        if connection.recv(1) != b"":
            raise Wrong("it does not close when asked to")


def request(mode: str, method: str, document: dict, close: bool) -> bytes:
    body = pretty(document) if mode == "work" else b""
    lines = [f"{method if body else 'GET'} / HTTP/1.1", "Host: 127.0.0.1"]
    if close:
        lines.append("Connection: close")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def exchange(connection: socket.socket, asked: bytes) -> tuple[str, bytes]:
    connection.settimeout(5)
    connection.sendall(asked)
    got = b""
    while b"\r\n\r\n" not in got:
        got += more(connection)
    head, _, body = got.partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: *(\d+)", head)
    if length is None:
        raise Wrong("its answer has no Content-Length")
    while len(body) < int(length[1]):
        body += more(connection)
    return head.decode("latin-1"), body


def more(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise CutShort("its answer is cut short")
    return data


def check_answer(mode: str, document: dict, head: str, body: bytes) -> None:
    if head.split(" ")[1] != "200":
        raise Wrong(f"it answers {head.splitlines()[0]!r}")
    content = re.search(r"(?im)^content-type: *(.*)", head)
    wanted = "application/json" if mode == "work" else "text/plain"
    if content is None or wanted not in content[1]:
        raise Wrong(f"its Content-Type is not {wanted}")
    if mode == "blank":
        if body != b"OK":
            raise Wrong(f"it answers {body!r}")
    # The order of keys counts, as in the suite.
    elif json.dumps(json.loads(body)) != json.dumps(answer(document)):
        raise Wrong(f"its answer is {body!r}")
