"""Sign-in links: the page that one opens has a button, which uses it up."""

from urllib.parse import parse_qsl, urlsplit

import httpx


def press_sign_in(client: httpx.Client, link: str) -> httpx.Response:
    """The answer to the button on the link's page."""
    assert client.get(link).status_code == 200
    return client.post(link.partition("?")[0], data=dict(parse_qsl(urlsplit(link).query)))
