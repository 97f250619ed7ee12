"""The signature, against the published example of Standard Webhooks, and bounds of answers."""

import gzip
import math
import tracemalloc
import zlib
from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pytest
import zstandard

from healer.adapters.webhook import PACKED, SignedWebhook, read_body, signed_headers


def test_the_published_example_of_a_signature():
    webhook = SignedWebhook("http://127.0.0.1:9/", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    at = datetime.fromtimestamp(1614265330, UTC)
    headers = signed_headers(webhook._key, "msg_p5jXN8AQM9LWM0D4loKWxJek", at, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_without_a_secret_nothing_is_signed():
    at = datetime.fromtimestamp(0, UTC)
    assert set(signed_headers(None, "a", at, b"")) == {"webhook-id", "webhook-timestamp"}


def test_a_wrong_secret_is_named_but_not_shown():
    with pytest.raises(ValueError, match="HEALER_WEBHOOK_SECRET") as wrong:
        SignedWebhook("http://127.0.0.1:9/", "whsec_***")
    assert "***" not in str(wrong.value)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_a_packed_answer_takes_no_more_memory_than_its_bound(pack: Callable[[bytes], bytes]):
    packed = pack(bytes(256 << 20))
    encoding = "gzip" if pack is gzip.compress else "zstd"
    answer = httpx.Response(200, headers={"content-encoding": encoding}, stream=httpx.ByteStream(packed))
    tracemalloc.start()
    try:
        found = read_body(answer, 64 * 1024, math.inf)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not found or found == packed  # one that was not asked for stays as it is
    assert most < 4 << 20


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_an_answer_is_read_as_it_was_packed(encoding: str):
    packed = gzip.compress(b"{}") if encoding == "gzip" else b"{}"
    answer = httpx.Response(200, headers={"content-encoding": encoding}, stream=httpx.ByteStream(packed))
    assert read_body(answer, 1024, math.inf) == b"{}"


def test_a_server_that_packs_raw_deflate_is_not_asked_for_it():
    """Some servers send "deflate" without the zlib header that the standard asks for."""

    def answer(request: httpx.Request) -> httpx.Response:
        encoding, packer = "gzip", zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
        if "deflate" in request.headers["accept-encoding"]:
            encoding, packer = "deflate", zlib.compressobj(wbits=-zlib.MAX_WBITS)
        packed = httpx.ByteStream(packer.compress(b"{}") + packer.flush())
        return httpx.Response(200, headers={"content-encoding": encoding}, stream=packed)

    with (
        httpx.Client(transport=httpx.MockTransport(answer), headers=PACKED) as client,
        client.stream("GET", "https://bmc") as response,
    ):
        assert read_body(response, 1024, math.inf) == b"{}"
