"""The signature, against the published example of Standard Webhooks."""

from datetime import UTC, datetime

import pytest

from healer.adapters.webhook import SignedWebhook, signed_headers


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
