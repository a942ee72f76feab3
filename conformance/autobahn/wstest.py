"""Autobahn's wstest from a plain folder of packages, on loopback only. CPython 2.7.

    python2.7 wstest.py PACKAGES fuzzingclient SPEC.json
    python2.7 wstest.py PACKAGES fuzzingserver SPEC.json

PACKAGES is what `pip install --target PACKAGES -r requirements.txt` filled. No virtual environment, because a
machine that still has CPython 2.7 rarely has a virtualenv for it. THRONG_TLS, if it is set, is the only version of
TLS: 1.2 or 1.3.
"""
import os
import site
import sys
import zlib

packages, mode, spec = sys.argv[1:4]
# First in the path, so that nothing installed beside the interpreter shadows a pinned version; and as a site
# folder, because zope.interface is a namespace package and exists only through its .pth file.
sys.path.insert(0, packages)
site.addsitedir(packages)

from cryptography.hazmat.backends import default_backend  # noqa: E402
from cryptography.hazmat.primitives import hashes  # noqa: E402

from OpenSSL import SSL  # noqa: E402

from autobahn.websocket import compress_deflate  # noqa: E402
from autobahntestsuite import fuzzing, wstest  # noqa: E402
from autobahntestsuite.case import case12_x_x  # noqa: E402

# wstest listens on every address by default. Nothing of ours may be reachable from outside.
listen_everywhere = fuzzing.listenWS
fuzzing.listenWS = lambda factory, context: listen_everywhere(factory, context, interface="127.0.0.1")


# Both sides have both versions and would always agree on the newer one.
OTHER_VERSIONS = {
    "1.2": SSL.OP_NO_TLSv1 | SSL.OP_NO_TLSv1_1 | SSL.OP_NO_TLSv1_3,
    "1.3": SSL.OP_NO_TLSv1 | SSL.OP_NO_TLSv1_1 | SSL.OP_NO_TLSv1_2,
}

if "THRONG_TLS" in os.environ:
    make_context = SSL.Context.__init__

    def make_context_of_one_version(context, method):
        make_context(context, method)
        context.set_options(OTHER_VERSIONS[os.environ["THRONG_TLS"]])

    SSL.Context.__init__ = make_context_of_one_version


# Groups 12 and 13 are a thousand messages per case, up to 128 KB, and nine tenths of the suite's time. Two things that
# took a third of it come to the same faster: the text of a case's whole file, decoded anew for each message, and SHA-1,
# in plain C where the interpreter was built without OpenSSL's.


class TestData(bytes):
    def decode(self, encoding):
        if not hasattr(self, "text"):
            self.text = bytes.decode(self, encoding)
        return self.text


class Sha1(hashes.Hash):
    def __init__(self):
        hashes.Hash.__init__(self, hashes.SHA1(), default_backend())

    digest = hashes.Hash.finalize


def with_text_kept(init):
    def init_and_keep(case):
        init(case)
        case.testData = TestData(case.testData)

    return init_and_keep


for case in case12_x_x.Case12_X_X + case12_x_x.Case13_X_X:
    case.init = with_text_kept(case12_x_x.init)


# Half of the suite's time was its own compression. A peer has to decompress what any level makes, and the fastest one
# makes the most bytes.


class FastCompression(object):
    def __getattr__(self, name):
        return getattr(zlib, name)

    def compressobj(self, level, *rest):
        return zlib.compressobj(zlib.Z_BEST_SPEED, *rest)


compress_deflate.zlib = FastCompression()

case12_x_x.hashlib = type("hashlib", (), {"sha1": Sha1})

sys.argv = ["wstest", "--mode", mode, "--spec", spec, "--webport", "0"]
wstest.run()
