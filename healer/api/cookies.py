"""Cookies by the scheme of the site: `__Host-NAME`, `Secure`, where it is reached by https, else `NAME`.

A browser takes a cookie with that prefix from this very host by https alone, so neither another host of the
domain nor a stranger on the way can plant one. By https a cookie without it is not read at all.
"""

from starlette.requests import HTTPConnection
from starlette.responses import Response

from healer.api.site_address import site_address

_PREFIX = "__Host-"


def cookie_name(request: HTTPConnection, name: str) -> str:
    """The cookie's name in this request, and in the answer to it."""
    return _PREFIX + name if site_address(request.scope).scheme == "https" else name


def read_cookie(request: HTTPConnection, name: str) -> str:
    """Its value; empty if there is none."""
    return request.cookies.get(cookie_name(request, name), "")


def set_cookie(
    request: HTTPConnection,
    response: Response,
    name: str,
    value: str,
    *,
    lasts_s: int | None,
    script: bool = False,
) -> None:
    """`script`: pages' scripts may read it. `lasts_s` None: until the browser is closed."""
    response.set_cookie(
        cookie_name(request, name),
        value,
        max_age=lasts_s,
        path="/",
        secure=site_address(request.scope).scheme == "https",
        httponly=not script,
        samesite="lax",
    )


def drop_cookie(request: HTTPConnection, response: Response, name: str) -> None:
    # Without `Secure` a browser leaves a `__Host-` cookie in place.
    secure = site_address(request.scope).scheme == "https"
    response.delete_cookie(cookie_name(request, name), path="/", secure=secure, httponly=True, samesite="lax")
