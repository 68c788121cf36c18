"""Session of a client: tools, a sub-agent and a resume, and the checks of its calls."""

from collections import Counter
from operator import ge
from pathlib import Path

from tests.e2e.harnesses.clients import CodingAgent
from tests.e2e.harnesses.conftest import OPERATOR, GuardedService, UnknownParts
from tests.e2e.harnesses.metering import (
    TokenCounts,
    engine_tokens,
    metered_usage,
    sum_tokens,
    tokens_in_answer,
)
from tests.e2e.harnesses.scenarios import AGAIN, AGENTS, BELOW, ENDS, FILES, TOOLS
from tests.e2e.harnesses.session import ClientSession, application_class, new_session
from tests.eventually import eventually

_METERED_WITHIN_S = 60.0


def check_calls(played: ClientSession) -> None:
    """Check that no call failed or came twice, and that all belong to one application."""
    calls = played.calls
    assert {200} == {call.status for call in calls}, [call.answer[-300:] for call in calls]
    repeated = [times for times in Counter(call.body for call in calls).values() if times > 1]
    assert not repeated
    named = {call.application for call in calls if call.application is not None}
    # The application is None if it had ended before it was read.
    assert 1 == len(named), [call.application for call in calls]
    asked = {str(call.fields["model"]) for call in calls}
    assert all(name.startswith(played.model_prefix) for name in asked), asked


async def run_session(played: ClientSession, *, agents: bool = True) -> None:
    """Run tools and a sub-agent, resume the session, and check that no call failed."""
    scripts = [TOOLS, AGENTS, AGAIN] if agents and played.client.spawn else [TOOLS, AGAIN]
    for number, name in enumerate(scripts):
        run = await played.run_client(f"{played.client.program}-{name}", resume=number > 0)
        assert 0 == run.status, run
        assert ENDS[name] in run.output, run
    written = {file for file in FILES if AGENTS in scripts or file != BELOW}
    work = played.directory / "work"
    assert dict.fromkeys(written, "ran\n") == {
        file.name: file.read_text() for file in work.iterdir() if file.name in FILES
    }
    check_calls(played)


async def check_application(
    played: ClientSession, guarded: GuardedService, tenant: str, *, may_leave: bool = False
) -> TokenCounts:
    """Check the application's class, and that every token is metered.

    Args:
        played: The session.
        guarded: The service.
        tenant: The session's.
        may_leave: Whether the client may exit before all its calls are answered: of those the
            service alone knows the tokens.

    Returns:
        The tokens, as its answers tell them.
    """
    calls = played.calls
    application = next(filter(None, (call.application for call in calls)))
    found = await application_class(guarded.url, played.key, application)
    told = [tokens_in_answer(call) for call in calls]
    untold = [call for call, one in zip(calls, told, strict=True) if not all(one)]
    left = [call for call in untold if may_leave and not call.is_whole]
    assert played.client.application_class == found
    assert untold == left, [
        (call.is_whole, call.body[-300:], call.answer[-500:]) for call in untold
    ]
    expected = (1, len(calls), sum_tokens(told))
    metered = None

    async def tokens_are_metered() -> bool:
        nonlocal metered
        metered = await metered_usage(guarded.url, guarded.secrets[OPERATOR], tenant)
        applications, inferences, tokens = metered
        if not left:
            return metered == expected
        are_counted = len(calls) - len(left) <= inferences <= len(calls)
        are_metered = all(map(ge, tokens, sum_tokens(told)))
        return applications == 1 and are_counted and are_metered

    try:
        await eventually(
            tokens_are_metered, "every token is metered", _METERED_WITHIN_S, every_s=0.2
        )
    except AssertionError as late:
        raise AssertionError(f"{late}: {metered} of {tenant}, not {expected}") from None
    return expected[2]


async def run_whole_session(
    guarded: GuardedService,
    client: CodingAgent,
    model: str,
    directory: Path,
    note_sent: UnknownParts,
    *,
    agents: bool = True,
) -> None:
    """Run a client's session, and check that service and engine count equal tokens.

    Args:
        guarded: The service; no other call runs on the model meanwhile.
        client: The client.
        model: Name of the model.
        directory: An empty directory.
        note_sent: Takes note of what the client sent.
        agents: Whether it sends a sub-agent, if it has any.
    """
    tenant = f"{client}-{model}"
    exporter, key = guarded.service.exporter, guarded.secrets[tenant]
    before = await engine_tokens(exporter, model)
    async with new_session(client, guarded.url, directory, model=model, key=key) as played:
        await run_session(played, agents=agents)
        note_sent(client, played.recorder)
        told = await check_application(played, guarded, tenant)
    expected = sum_tokens((before, told))
    found = None

    async def tokens_are_counted() -> bool:
        nonlocal found
        found = await engine_tokens(exporter, model)
        return found == expected

    try:
        await eventually(
            tokens_are_counted, "the engine has counted it", _METERED_WITHIN_S, every_s=0.5
        )
    except AssertionError as late:
        raise AssertionError(f"{late}: {found}, not {expected}") from None
