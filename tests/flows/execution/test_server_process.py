import asyncio

import pytest

from flows.execution.server_process import RetryLocked


class Application:
    """Answers with the statuses it is given, one request after the other, and raises what it answers with 503."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)
        self.bodies = []

    async def __call__(self, scope, receive, send):
        scope["written"] = True
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        self.bodies.append(body + message["body"])
        status = self.statuses.pop(0)
        await send({"type": "http.response.start", "status": status})
        await send({"type": "http.response.body", "body": str(status).encode()})
        if status == 503:
            raise RuntimeError("database is locked")


def ask(application, method="POST", parts=(b"a", b"bc")):
    """Send one request; give the messages of the answer, and the scope."""
    request = [{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts]
    scope = {"type": "http", "method": method}
    answer = []

    async def receive():
        return request.pop(0)

    async def send(message):
        answer.append(message)

    async def run():
        try:
            await RetryLocked(application)(scope, receive, send)
        except RuntimeError as error:
            return error
        return None

    return answer, asyncio.run(run()), scope


def test_a_request_that_met_a_locked_database_is_made_again_whole_and_answered_once():
    application = Application(503, 503, 201)
    answer, failure, scope = ask(application)
    assert application.bodies == [b"abc"] * 3
    assert [message.get("status") for message in answer] == [201, None]
    assert failure is None
    assert scope == {"type": "http", "method": "POST"}


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.slow
def test_any_other_answer_is_passed_on_at_once(status):
    application = Application(status, 201)
    answer, _, _ = ask(application)
    assert answer[0]["status"] == status
    assert len(application.bodies) == 1


@pytest.mark.slow
def test_a_database_that_stays_locked_is_told_by_the_answer_alone():
    application = Application(*[503] * 9)
    answer, failure, _ = ask(application)
    assert [message.get("status") for message in answer] == [503, None]
    assert failure is None
    assert len(application.bodies) == 6


def test_any_other_error_is_raised_once_it_is_answered():
    class Broken(Application):
        async def __call__(self, scope, receive, send):
            await super().__call__(scope, receive, send)
            raise RuntimeError("a defect")

    answer, failure, _ = ask(Broken(500))
    assert answer[0]["status"] == 500
    assert str(failure) == "a defect"


@pytest.mark.slow
def test_reading_is_never_repeated():
    application = Application(503, 200)
    answer, failure, _ = ask(application, "GET")
    assert answer[0]["status"] == 503
    assert failure is not None
    assert len(application.bodies) == 1
