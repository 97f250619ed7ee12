"""The event loop of a server with TLS: uvicorn has no setting for the time of a handshake."""

from typing import Any

import uvloop

#: asyncio allows a minute, in which a silent connection counts for no address.
HANDSHAKE_S = 10.0


class HandshakeLoop(uvloop.Loop):
    async def create_server(self, *args: Any, **more: Any) -> Any:
        if more.get("ssl") is not None:
            more.setdefault("ssl_handshake_timeout", HANDSHAKE_S)
        return await super().create_server(*args, **more)
