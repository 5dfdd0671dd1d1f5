"""The address of a device behind an RPC tracker says tracker, key and target, or is refused."""

from __future__ import annotations

import pytest

from tuner.targets.remote import RemoteDevice, is_remote, parse_remote


def test_an_address_names_tracker_key_and_target() -> None:
    text = "rpc://farm:9190/pi4?target=llvm -mcpu=cortex-a72&cc=aarch64-linux-gnu-g++"
    assert parse_remote(text.replace("++", "%2B%2B")) == RemoteDevice(
        host="farm", port=9190, key="pi4", target="llvm -mcpu=cortex-a72", compiler="aarch64-linux-gnu-g++"
    )
    assert parse_remote("rpc://farm:9190/pi4") == RemoteDevice(host="farm", port=9190, key="pi4")
    assert parse_remote("rpc://localhost:9190/pi4").tracker == "127.0.0.1" + ":9190"
    assert not is_remote("nvidia/nvidia-h100")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rpc://farm", "lacks host, port or key"),
        ("rpc://farm:9190", "lacks host, port or key"),
        ("rpc://farm:port/key", "lacks host, port or key"),
        ("rpc://:9190/key", "lacks host, port or key"),
        ("rpc://farm:9190/a/b", "lacks host, port or key"),
        ("rpc://farm:9190/key?tag=x", "'tag' is not known"),
    ],
)
def test_what_is_no_address_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_remote(text)
