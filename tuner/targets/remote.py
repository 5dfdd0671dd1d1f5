"""Devices behind TVM's RPC tracker: what `rpc://host:port/key?target=…` says.

Checked in tests/tuner/targets/test_remote.py.
"""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import msgspec

REMOTE = "rpc://"
"""How the text of such a target begins."""

_OPTIONS = ("target", "cc")


class RemoteDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of device behind a tracker.

    Attributes:
        key: under which servers offer such devices.
        target: what programs are built for, as a user writes it; empty where the server says it.
        compiler: C++ compiler that links for the device; this machine's if empty.
    """

    host: str
    port: int
    key: str
    target: str = ""
    compiler: str = ""

    @property
    def tracker(self) -> str:
        """Return the tracker's address."""
        return f"{self.host}:{self.port}"


def is_remote(text: str) -> bool:
    """Say whether a target's text names a device behind a tracker."""
    return text.startswith(REMOTE)


def parse_remote(text: str) -> RemoteDevice:
    """Return what the text of a target behind a tracker says.

    Raises:
        ValueError: it lacks host, port or key, or has an option that is not known.
    """
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = None
    key = parts.path.strip("/")
    options = parse_qs(parts.query, keep_blank_values=True)
    unknown = sorted(set(options) - set(_OPTIONS))
    if not is_remote(text) or not parts.hostname or port is None or not key or "/" in key or unknown:
        wrong = f"its option {unknown[0]!r} is not known" if unknown else "it lacks host, port or key"
        raise ValueError(
            f"target {text!r} names no device behind an RPC tracker: {wrong}; write "
            "rpc://HOST:PORT/KEY?target=TARGET"
        )
    (target,), (compiler,) = (options.get(name, [""])[-1:] for name in _OPTIONS)
    return RemoteDevice(
        host=numeric_host(parts.hostname), port=port, key=key, target=target, compiler=compiler
    )


def numeric_host(name: str) -> str:
    """Return the number of `localhost`, which TVM may look up in the other address family."""
    return "127.0.0.1" if name == "localhost" else name
