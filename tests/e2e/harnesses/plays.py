"""What a client plays, and what is held of its calls."""

from collections import Counter

from tests.e2e.harnesses.conftest import OPERATOR, Guarded
from tests.e2e.harnesses.scenarios import AGAIN, AGENTS, BELOW, ENDS, FILES, TOOLS
from tests.e2e.harnesses.session import Session, class_of, told_use, used
from tests.eventually import eventually


def check_calls(played: Session) -> None:
    """Hold that no call failed or came twice, and all are one application."""
    calls = played.calls
    assert {200} == {call.status for call in calls}, [call.answer[-300:] for call in calls]
    repeated = [times for times in Counter(call.body for call in calls).values() if times > 1]
    assert not repeated
    named = {call.application for call in calls if call.application is not None}
    assert 1 == len(named), [call.application for call in calls]  # None: begun before it was read


async def play(played: Session, *, agents: bool = True) -> None:
    """Play tools, a sub-agent and a resume, and hold that all was done and nothing failed."""
    scripts = [TOOLS, AGENTS, AGAIN] if agents and played.client.spawn else [TOOLS, AGAIN]
    for number, name in enumerate(scripts):
        run = await played.run(f"{played.client.program}-{name}", resume=number > 0)
        assert 0 == run.status, run
        assert ENDS[name] in run.output, run
    written = {file for file in FILES if AGENTS in scripts or file != BELOW}
    work = played.directory / "work"
    assert dict.fromkeys(written, "ran\n") == {
        file.name: file.read_text() for file in work.iterdir() if file.name in FILES
    }
    check_calls(played)


async def check_application(played: Session, guarded: Guarded, tenant: str) -> None:
    """Hold that its application has the class of the client, and every token is metered."""
    calls = played.calls
    application = next(filter(None, (call.application for call in calls)))
    found = await class_of(guarded.url, played.key, application)
    told = [told_use(call) for call in calls]
    prompt, output = map(sum, zip(*told, strict=True))
    expected = (1, len(calls), prompt, output)

    async def is_metered() -> bool:
        return expected == await used(guarded.url, guarded.secrets[OPERATOR], tenant)

    assert played.client.application_class == found
    assert all(prompt and output for prompt, output in told)
    await eventually(is_metered, f"{expected} of {tenant} are metered", 30.0)
