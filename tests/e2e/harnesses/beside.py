"""Side calls of a client's conversation, such as calls for a title, which have no tools."""

from collections.abc import Sequence

from tests.e2e.harnesses.recorder import RecordedCall


def side_call_times(calls: Sequence[RecordedCall]) -> list[str]:
    """Return for each side call the seconds since the conversation's last call began or ended."""
    found = []
    for call in calls:
        if call.fields.get("tools"):
            continue
        others = [other for other in calls if other is not call]
        moments = [
            *((call.begun_at - other.begun_at, "began") for other in others),
            *((call.begun_at - other.ended_at, "ended") for other in others),
        ]
        since_s, what = min((one for one in moments if one[0] >= 0), default=(0.0, ""))
        found.append(f"{1000 * since_s:.0f} ms after one {what}" if what else "the first")
    return found
