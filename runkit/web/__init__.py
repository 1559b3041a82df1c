"""A small local page around a model: one HTML file, one address that takes a request body and answers JSON.

For trying a model, not for the open network: it listens on the loopback address unless told otherwise, answers one
request at a time, refuses bodies above a limit while they arrive, and refuses names of the machine that it was not
started under (so that no page of the web can reach it through a name of its own).
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runkit.errors import UserError

FOLDER = Path(__file__).parent
DROPPING_SECONDS = 60.0
WAITING = 16  # requests at once; others are told to come back
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
# Nothing but what the page brings along: no script of another place can run in it.
POLICY = "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; frame-ancestors 'none'"


class Action(NamedTuple):
    """What an address does: function(body) -> what is sent back as JSON; it may raise UserError, which is shown.

    content_types: those accepted, such as "application/json" or "audio/" (all that begin so). max_bytes: of a body.
    """

    function: Callable[[bytes], Any]
    content_types: Sequence[str]
    max_bytes: int


def create_app(page: Path, actions: dict[str, Action], hosts: Sequence[str] = LOOPBACK):
    """The ASGI application: the page at /, its script beside it (same name, .js) at /page.js, actions by their paths.

    hosts: names under which it may be called.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import FileResponse, JSONResponse
    from starlette.routing import Route

    working, waiting = asyncio.Lock(), asyncio.Semaphore(WAITING)

    def error(message: str, status: int) -> JSONResponse:
        return JSONResponse({"error": message}, status, headers={"Connection": "close"})

    def file(path: Path, media_type: str) -> Callable:
        async def respond(_request):
            headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
            return FileResponse(path, media_type=media_type, headers=headers | {"Cache-Control": "no-cache"})

        return respond

    def act(action: Action) -> Callable:
        async def respond(request):
            kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
            if not any(kind == known or (known.endswith("/") and kind.startswith(known))
                       for known in action.content_types):  # fmt: skip
                known = ", ".join(known + "*" * known.endswith("/") for known in action.content_types)
                return error(f"the content type is {kind or 'not given'}; it must be {known}", 415)
            if waiting.locked():
                return error(f"{WAITING} requests are waiting already; try again in a moment", 503)
            async with waiting:
                body = await received(request, action.max_bytes)
                if body is None:
                    return error(f"more than {action.max_bytes / 1e6:g} MB; send less at once", 413)
                async with working:
                    try:
                        result = await asyncio.to_thread(action.function, body)
                    except UserError as problem:
                        return error(str(problem), 422)
                return JSONResponse(result)

        return respond

    routes = [
        Route("/", file(page, "text/html; charset=utf-8")),
        Route("/page.js", file(page.with_suffix(".js"), "text/javascript; charset=utf-8")),
        Route("/page.css", file(FOLDER / "page.css", "text/css; charset=utf-8")),
        *(Route(path, act(action), methods=["POST"]) for path, action in actions.items()),
    ]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))])


async def received(request, max_bytes: int) -> bytes | None:
    """A request's body; None when it is larger. Then the rest is read and dropped for a while, since a client that is
    still sending would never see the answer."""
    body, deadline = bytearray(), 0.0
    async for chunk in request.stream():
        if len(body) + len(chunk) <= max_bytes and not deadline:
            body += chunk
        elif not deadline:
            body.clear()
            deadline = time.monotonic() + DROPPING_SECONDS
        elif time.monotonic() > deadline:
            break
    return None if deadline else bytes(body)


def serve(page: Path, actions: dict[str, Action], host: str, port: int) -> None:
    """Serves until interrupted. Raises UserError when the address cannot be had."""
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host") from error
    hosts = LOOPBACK if host in LOOPBACK else ["*"]
    if hosts == ["*"]:
        print(f"warning: listening on {host}: whoever reaches this machine can use the model", flush=True)
    shown = f"[{host}]" if ":" in host else host
    print(f"open http://{shown}:{listener.getsockname()[1]} in a browser (Ctrl+C ends it)", flush=True)
    config = uvicorn.Config(create_app(page, actions, hosts), log_level="warning", lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])
