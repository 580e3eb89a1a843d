"""A server that asks its SQLite database again, where Prefect's own tells the client to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_PAUSES_S = (0.02, 0.04, 0.08, 0.16, 0.32)


class AskAgain:
    """ASGI middleware that repeats a writing request which was answered with 503, up to five times in a second.

    SQLite refuses a transaction at once when another one has written since it began to read. Prefect's server makes a
    503 of that, and its client sends the request again two seconds later: as long as all that Prefect adds to a night
    of tens of tasks. The refused transaction was rolled back, so nothing is done twice.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["method"] == "GET":
            await self._application(scope, receive, send)
            return
        request = await _whole(receive)
        for pause_s in (*_PAUSES_S, None):
            # A copy: routers write into the scope.
            answer, failure = await self._answer(dict(scope), _replay(request, receive))
            if pause_s is None or _status(answer) != HTTPStatus.SERVICE_UNAVAILABLE:
                break
            await asyncio.sleep(pause_s)
        for message in answer:
            await send(message)
        # A 503 is told by the answer: the client asks again. Raised, it would be a traceback on the night's terminal.
        if failure is not None and _status(answer) != HTTPStatus.SERVICE_UNAVAILABLE:
            raise failure

    async def _answer(self, scope: Message, receive: Receive) -> tuple[list[Message], Exception | None]:
        """What the application answers; the error as well, since it raises what it has answered with 500 or 503."""
        answer: list[Message] = []

        async def collect(message: Message) -> None:
            answer.append(message)

        try:
            await self._application(scope, receive, collect)
        except Exception as failure:  # noqa: BLE001 - it is raised again once the answer is sent
            return answer, failure
        return answer, None


def _status(answer: list[Message]) -> int | None:
    return answer[0].get("status") if answer else None


async def _whole(receive: Receive) -> list[Message]:
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _replay(request: list[Message], receive: Receive) -> Receive:
    left = iter(request)

    async def replayed() -> Message:
        message = next(left, None)
        return message if message is not None else await receive()

    return replayed
