"""A made-up service whose frames follow from the second, for tests of the console page.

All is computed from the second and the sizes, so two servers show the same. An application runs
for six seconds on its replica, then its context is held for three while a tool works, and so on;
every fourth application waits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from justitia_ray.access.identity import is_within
from justitia_ray.application_key import application_key
from justitia_ray.core.calibration import Quantiles
from justitia_ray.protocol.console import (
    PAST_S,
    PLANNED,
    QUEUE_ROWS,
    Ages,
    Bar,
    BarKind,
    Frame,
    Hello,
    Label,
    PlannedBar,
    Predictor,
    Queue,
    QueueRow,
    QuotaLeft,
    ReplicaLane,
    SharePast,
    ShareRow,
    Strip,
    Trouble,
)
from justitia_ray.protocol.console_answers import (
    CallSpan,
    Change,
    ConsoleApplication,
    Setting,
    Timeline,
    Times,
    TimeSpan,
    Trace,
    WhatIfAnswer,
)
from justitia_ray.protocol.status import Counts, StoreView
from justitia_ray.units import ApplicationId, ClientId, Epoch, Seconds

BEGAN_AT: Seconds = 1_800_000_000.0
"""Time of second 0 on the clock of the made-up scheduler."""
KV_TOKENS = 100_000
RUNS_S, HELD_S = 6, 3
TENANTS = ("acme/search/alice", "acme/search/bob", "acme/reports", "globex", "initech")
CLASSES = ("code_feedback", "map_reduce_summary", "react_fever", "self_consistency")
REASONS = (
    ("turn", "other applications come first", "time, a larger weight, or more replicas"),
    ("headroom", "it is first, and fits on no replica now", "a replica with free KV memory"),
    ("quota:globex", "a quota of globex has nothing left", "the next period of the quota"),
)


@dataclass(frozen=True)
class MadeUp:
    """A made-up model with random applications; equal seconds give equal console data.

    Attributes:
        name: Name of the model.
        replicas: Number of replicas.
        applications: Number of live applications.
        epoch: Term of its scheduler.
    """

    name: str = "llama"
    replicas: int = 4
    applications: int = 40
    epoch: Epoch = 7

    # --- lines

    def frame(self, second: int, tenant: ClientId | None = None, *, is_whole: bool = True) -> Frame:
        """Return the console data of a second, for one tenant or (None) for all."""
        shown = [one for one in self._applications() if _is_visible_to(one, tenant)]
        past = PAST_S if is_whole else 12.0
        now = {bar.id: bar for one in shown for bar in self._timeline_bars(one, second, past)}
        if not is_whole:
            before = {
                bar.id: bar for one in shown for bar in self._timeline_bars(one, second - 1, past)
            }
            now = {name: bar for name, bar in now.items() if before.get(name) != bar}
        waiting = [one for one in shown if one.waits]
        planned = [self._planned_bar(one, second) for one in waiting[:PLANNED]]
        barred = {bar.application for bar in now.values()}
        labels = {one.key: one.label for one in shown if one.waits or one.key in barred}
        ages = sorted(self._waiting_time_s(one, second) for one in waiting)
        return Frame(
            model=self.name,
            epoch=self.epoch,
            number=second,
            at=BEGAN_AT + second,
            recorded_from=BEGAN_AT,
            is_whole=is_whole,
            strip=self._status_strip(second, tenant),
            replicas=tuple(self._replica_lane(index, tenant) for index in range(self.replicas)),
            bars=tuple(sorted(now.values())),
            planned=tuple(planned),
            labels=labels,
            queue=self._queue(waiting, len(shown) - len(waiting), second),
            ages=Ages(ages[len(ages) // 2], ages[len(ages) * 95 // 100], ages[-1])
            if ages
            else None,
            own=_state_counts(shown),
            others=_state_counts(
                [one for one in self._applications() if not _is_visible_to(one, tenant)]
            ),
            shares=tuple(self._share_rows(tenant)),
            shares_past=tuple(
                SharePast(BEGAN_AT + at, {row.node: row.used for row in self._share_rows(tenant)})
                for at in range(0, second, 5)
                if is_whole
            ),
        )

    def predictor(self) -> Predictor:
        """Return made-up facts about the predictor: one class uses its mean, others networks."""
        trained = [
            {
                "version": number,
                "size_bytes": 40_000,
                "kind": "network",
                "samples": 100 * number,
                "error": 0.5 / number,
                "reason": "samples",
                "trained_at": BEGAN_AT - 3_600.0 / number,
                "took_over": True,
            }
            for number in (1, 2, 3)
        ]
        modelled = {
            "samples": 320,
            "kv_token_time_mean": 4.2e6,
            "changes": 1,
            "serving": 2,
            "active": 2,
            "pinned": True,
            "last_training": trained[-1],
            "versions": trained,
        }
        by_mean: dict[str, Any] = {
            "samples": 12,
            "kv_token_time_mean": 9.1e5,
            "changes": 0,
            "serving": 0,
            "active": 0,
            "pinned": False,
            "last_training": None,
            "versions": [],
        }
        first, *others = CLASSES
        classes = {first: by_mean} | dict.fromkeys(others, modelled)
        return Predictor(model=self.name, overview={"learns": True, "classes": classes})

    def trouble(self, since_s: Seconds) -> Trouble:
        """Return the console message that the scheduler is restarting."""
        reason = "the scheduler is being started again"
        return Trouble(model=self.name, reason=reason, since_s=since_s)

    # --- other answers

    def application(
        self, application: ApplicationId, second: int, tenant: ClientId | None = None
    ) -> ConsoleApplication | None:
        """Return the application with a key; None if it is missing or belongs to another tenant."""
        found = next((one for one in self._applications() if one.key == application), None)
        if found is None or not _is_visible_to(found, tenant):
            return None
        calls, tools = [], []
        at = BEGAN_AT + found.arrived
        for number in range(4):
            starts = at + 1.0
            ends = starts + RUNS_S
            is_last = number == 3
            calls.append(
                CallSpan(
                    inference_id=str(number),
                    stage=number,
                    replica_id=found.replica_id,
                    submitted_at=at,
                    started_at=None if is_last and found.waits else starts,
                    first_token_at=None if is_last else starts + 1.5,
                    ended_at=None if is_last else ends,
                    outcome=None if is_last else "finished",
                    attempts=1,
                    prompt_tokens=2_000 * (number + 1),
                    cached_prompt_tokens=1_900 * number,
                    output_tokens=0 if is_last else 400,
                    predicted_output_tokens=350,
                )
            )
            if not is_last:
                tools.append(TimeSpan(ends, ends + HELD_S - 1.0))
            at = ends + HELD_S - 1.0
        timeline = Timeline(
            at=BEGAN_AT + second,
            recorded_from=BEGAN_AT,
            application=found.key,
            tenant=found.tenant,
            application_id=found.application_id,
            application_class=found.application_class,
            state="open",
            tier="default",
            weight=1.0,
            arrived_at=BEGAN_AT + found.arrived,
            predicted_kv_token_time=4.0e6,
            kv_token_time=3.1e6,
            prompt_tokens=12_000,
            cached_prompt_tokens=5_700,
            output_tokens=1_200,
            inferences=3,
            waiting=int(found.waits),
            running=int(not found.waits),
            row=self._queue_row(found, 0, second) if found.waits else None,
            calls=tuple(calls),
            tools=tuple(tools),
            trace=Trace(trace_id=f"{found.number:032x}", url=None),
        )
        return ConsoleApplication(
            application_id=found.application_id,
            tenant=found.tenant,
            models={self.name: timeline},
        )

    def what_if(self, policy: str, weights: dict[ClientId, float], replicas: int) -> WhatIfAnswer:
        """Return a made-up answer of "what if": all waiting times shrink to three quarters."""
        before = Times(applications=40, mean_s=40.0, p90_s=80.0, worst_s=120.0)
        after = Times(applications=40, mean_s=30.0, p90_s=60.0, worst_s=90.0)
        change = Change(
            before=before, after=after, mean=-0.25, p90=-0.25, worst=-0.25, no_later=0.9
        )
        return WhatIfAnswer(
            model=self.name,
            start=BEGAN_AT,
            end=BEGAN_AT + 300.0,
            applications=40,
            inferences=160,
            before=Setting(policy="justitia-guarded", replicas=self.replicas),
            after=Setting(policy=policy, weights=weights, replicas=replicas),
            all=change,
            tenants=dict.fromkeys(TENANTS, change),
            measured=replace(before, mean_s=42.0),
            simulated=before,
            notes=("engines are simulated with the iteration times of the last minutes",),
            took_s=2.5,
        )

    # --- parts

    def _applications(self) -> Iterator["_MadeUpApplication"]:
        return (_MadeUpApplication(number, self.replicas) for number in range(self.applications))

    def _timeline_bars(
        self, one: "_MadeUpApplication", second: int, past: Seconds
    ) -> Iterator[Bar]:
        """Yield an application's timeline bars that overlap the last `past` seconds.

        A waiting application has bars, too, up to 10 seconds ago.
        """
        period = RUNS_S + HELD_S
        number = 0
        for begins in range(one.arrived, second + 1, period):
            for kind, start, lasts in (
                (BarKind.RUN, begins, RUNS_S),
                (BarKind.HELD, begins + RUNS_S, HELD_S),
            ):
                number += 1
                ends = start + lasts
                if start > second or ends < second - past or (one.waits and ends > second - 10):
                    continue
                yield Bar(
                    one.number * 10_000 + number,
                    one.replica_id,
                    one.key,
                    kind,
                    BEGAN_AT + start,
                    BEGAN_AT + ends if ends <= second else None,
                    one.kv_tokens,
                )

    def _planned_bar(self, one: "_MadeUpApplication", second: int) -> PlannedBar:
        start = BEGAN_AT + second + 2.0 + one.number // 4
        return PlannedBar(one.replica_id, one.key, start, start + RUNS_S, one.kv_tokens)

    def _queue(self, waiting: list["_MadeUpApplication"], running: int, second: int) -> Queue:
        reasons: dict[str, int] = {"running": running}
        for place, _ in enumerate(waiting):
            reason = _waiting_reason(place)[0].partition(":")[0]
            reasons[reason] = reasons.get(reason, 0) + 1
        return Queue(
            rows=tuple(
                self._queue_row(one, place, second)
                for place, one in enumerate(waiting[:QUEUE_ROWS])
            ),
            waiting=len(waiting),
            by_reason={reason: count for reason, count in reasons.items() if count},
        )

    def _queue_row(self, one: "_MadeUpApplication", place: int, second: int) -> QueueRow:
        reason, why, helps = _waiting_reason(place)
        start = 2.0 + place
        return QueueRow(
            position=place,
            application=one.key,
            tenant=one.tenant,
            application_id=one.application_id,
            application_class=one.application_class,
            tier="default",
            weight=1.0,
            reason=reason,
            why=why,
            what_would_help=helps,
            waiting=1,
            running=0,
            age_s=float(second - one.arrived),
            waited_s=self._waiting_time_s(one, second),
            predicted_kv_token_time=4.0e6,
            kv_token_time=3.1e6,
            virtual_finish_time=1.0e6 + place,
            ahead_kv_token_time=1.0e5 * place,
            expected_start_s=Quantiles(start * 0.5, start, start * 2.0),
            expected_finish_s=Quantiles(start * 0.5 + 6.0, start + 8.0, start * 2.0 + 12.0),
            guaranteed_by_s=None if place % 5 == 4 else start * 3.0,
        )

    def _waiting_time_s(self, one: "_MadeUpApplication", second: int) -> Seconds:
        return float(10 + one.number % 7 + second % 60)

    def _replica_lane(self, index: int, tenant: ClientId | None) -> ReplicaLane:
        lane = ReplicaLane(
            replica_id=f"replica-{index}",
            kv_tokens=KV_TOKENS,
            state="draining" if index and index == self.replicas - 1 else "serving",
        )
        if tenant is not None:
            return lane
        return replace(
            lane,
            used_kv_tokens=61_000,
            leased_kv_tokens=60_000,
            held_kv_tokens=12_000,
            leases=6,
            running=6,
            sequences=6,
            max_num_seqs=256,
            silent_s=0.05,
        )

    def _status_strip(self, second: int, tenant: ClientId | None) -> Strip:
        strip = Strip(state="ready", policy="justitia-guarded")
        if tenant is not None:
            return strip
        count = self.replicas
        return replace(
            strip,
            virtual_time=1.0e6 + 100.0 * second,
            drain_s=42.0,
            kv_tokens=count * KV_TOKENS,
            used_kv_tokens=count * 61_000,
            leased_kv_tokens=count * 60_000,
            held_kv_tokens=count * 12_000,
            free_kv_tokens=count * 27_000,
            replicas_up=count,
            replicas_wanted=count + 1,
            wanted_why="the queue would take 42 s",
            applications=self.applications,
            waiting=(self.applications + 3) // 4,
            running=self.applications - (self.applications + 3) // 4,
            grants=1_000 + 5 * second,
            suspects=0,
            store=StoreView(
                kind="redis",
                durability="async",
                connected=True,
                saved_s_ago=0.3,
                save_interval_s=0.5,
                unsaved_applications=3,
            ),
            version="0.0.0",
        )

    def _share_rows(self, tenant: ClientId | None) -> Iterator[ShareRow]:
        nodes = sorted(
            {"/".join(path.split("/")[:depth]) for path in TENANTS for depth in (1, 2, 3)},
            key=lambda node: node.split("/"),
        )
        for node in nodes:
            if tenant is not None and not is_within(node, tenant):
                continue
            part = sum(is_within(path, node) for path in TENANTS) / len(TENANTS)
            quota = QuotaLeft(
                unit="kv_token_time",
                per="hour",
                limit=1.0e9,
                used=4.0e8,
                claimed=1.0e8,
                remaining=5.0e8,
                reset_s=1_200.0,
                on_exhausted="refuse",
            )
            yield ShareRow(
                node=node,
                weight=1.0,
                fair_share=part,
                guaranteed=0.1,
                used=min(1.0, part * 1.1),
                borrowed=part * 0.1,
                waiting=2,
                running=5,
                quotas=(quota,) if node == "globex" else (),
            )


@dataclass(frozen=True)
class _MadeUpApplication:
    number: int
    replicas: int

    @property
    def tenant(self) -> ClientId:
        return TENANTS[self.number % len(TENANTS)]

    @property
    def application_id(self) -> ApplicationId:
        return f"run-{self.number}"

    @property
    def application_class(self) -> str:
        return CLASSES[self.number % len(CLASSES)]

    @property
    def key(self) -> ApplicationId:
        return application_key(self.tenant, self.application_id)

    @property
    def label(self) -> Label:
        return Label(self.tenant, self.application_id, self.application_class)

    @property
    def replica_id(self) -> str:
        return f"replica-{self.number % self.replicas}"

    @property
    def arrived(self) -> int:
        return self.number % (RUNS_S + HELD_S)

    @property
    def kv_tokens(self) -> int:
        return 1_000 + 500 * (self.number % 9)

    @property
    def waits(self) -> bool:
        return self.number % 4 == 0


def hello_line(tenant: ClientId | None, models: tuple[str, ...]) -> Hello:
    return Hello(
        service_version="0.0.0",
        tenant=tenant,
        is_operator=tenant is None,
        models=models,
        policies=("justitia", "justitia-guarded", "vtc", "fcfs"),
    )


def _waiting_reason(place: int) -> tuple[str, str, str]:
    return REASONS[1] if not place else REASONS[2 if place % 7 == 6 else 0]


def _is_visible_to(one: _MadeUpApplication, tenant: ClientId | None) -> bool:
    return tenant is None or is_within(one.tenant, tenant)


def _state_counts(applications: list[_MadeUpApplication]) -> Counts:
    waiting = sum(one.waits for one in applications)
    return Counts(len(applications), waiting, len(applications) - waiting)
