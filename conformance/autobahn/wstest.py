"""Autobahn's wstest from a plain folder of packages, on loopback only. CPython 2.7.

    python2.7 wstest.py PACKAGES fuzzingclient SPEC.json
    python2.7 wstest.py PACKAGES fuzzingserver SPEC.json

PACKAGES is what `pip install --target PACKAGES -r requirements.txt` filled. No virtual environment, because a
machine that still has CPython 2.7 rarely has a virtualenv for it.
"""
import site
import sys

packages, mode, spec = sys.argv[1:4]
# First in the path, so that nothing installed beside the interpreter shadows a pinned version; and as a site
# folder, because zope.interface is a namespace package and exists only through its .pth file.
sys.path.insert(0, packages)
site.addsitedir(packages)

from autobahntestsuite import fuzzing, wstest  # noqa: E402

# wstest listens on every address by default. Nothing of ours may be reachable from outside.
listen_everywhere = fuzzing.listenWS
fuzzing.listenWS = lambda factory, context: listen_everywhere(factory, context, interface="127.0.0.1")

sys.argv = ["wstest", "--mode", mode, "--spec", spec, "--webport", "0"]
wstest.run()
