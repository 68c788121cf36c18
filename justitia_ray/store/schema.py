"""Redis keys and the form of their values; keys are defined nowhere else.

Every key of one served model starts with `justitia:{app/model}:`. The braces are a Redis Cluster
hash tag: all keys of a model live in one slot, so that a script may touch them together.

| key after the prefix | type | value |
|---|---|---|
| `schema` | string | version of this table, an integer; a newer one is refused |
| `epoch` | string | integer >= 1, raised by each leader, at least to Redis's clock in ms |
| `office` | string | JSON object, the leader: `epoch`, and the fields of `leader.LeaderRecord` |
| `clock` | string | JSON object: the virtual clock |
| `applications` | hash | application key, `tenant|application_id` → JSON object |
| `settings` | string | JSON object: the scheduling settings in force |
| `replicas` | hash | replica_id → JSON object, the replicas a scheduler knows |
| `usage:DAY` | hash | tenant → JSON object: totals of a day of UTC; it expires after 400 days |
| `prediction:classes` | hash | application class → JSON object, the statistics of its costs |
| `prediction:learning` | hash | application class → JSON object: progress, stages |
| `prediction:models` | hash | application class → JSON object: versions of its model, checksums |
| `prediction:model:CLASS:N` | string | bytes of version N of a class's model, no JSON |
| `prediction:samples:CLASS` | list | JSON objects: finished applications, the latest last |
| `prediction:observed` | stream | `o`, a JSON object: a finished application yet to be learned |
| `prediction:applied` | string | id of the last entry of that stream that was learned |
| `prediction:learner` | string | the predictor replica that learns; it expires |
| `prediction:revision` | string | integer, raised by every change of classes, learning or models |

The keys of an application, which all its models share, start with `justitia:{app}:`. No script
touches them together with those of a model, for they lie in another slot.

| key after the prefix | type | value |
|---|---|---|
| `keys` | hash | id of an API key → JSON object: its SHA-256, tenant, scopes; never the key |

Of inputs, samples hold features, and the text only under `store_inputs`. Values are JSON, models
checked arrays of numbers (`predictor.model_file`), never pickles: whoever can write to Redis must
not be able to run code here.

Version 3 (this one) has applications by their keys: the ids of version 2 were the same for all
tenants. Version 2 added `office`: a scheduler of version 1 would leave the name of another one
there. Since then every live application has `ended_leases`, and `replicas` and `kv_token_time`, and
the clock `grants`, `policy` and `counted`, which version 1 did not always write. `migrations` has
the steps. `recognized_by` and `idle_s` stand only in applications that have one: earlier releases
of version 3 pass them over, and so they took no new version; nor did `usage`.

The accounts of an application's quotas have the same form under the name `app//accounts`, which no
model can have: their `applications` are the records of the quota book, by their names there
(`window:PATH|UNIT/PERIOD`, `claim:SCHEDULER|NAME`, `term:SCHEDULER`; `accounts.book`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from justitia_ray.errors import ConfigError, StoreError

SCHEMA_VERSION = 3
"""Version of the data in Redis, increased by every change that an older version would misread."""

JsonObject: TypeAlias = dict[str, Any]

# A brace in the name would end the hash tag early, and spread a model's keys over several slots.
_NAME = re.compile(r"[^{}\s]{1,200}")


class Keys:
    """Redis keys of one served model; the module's first table describes their values.

    Args:
        name: `app/model`, 1 to 200 characters without braces and white space.

    Raises:
        ConfigError: If the name has another form.
    """

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"store name is {name!r}: 1 to 200 characters without braces or white space are"
                " allowed"
            )
        prefix = f"justitia:{{{name}}}:"
        self.schema = prefix + "schema"
        self.epoch = prefix + "epoch"
        self.leader = prefix + "office"
        self.clock = prefix + "clock"
        self.applications = prefix + "applications"
        self.settings = prefix + "settings"
        self.replicas = prefix + "replicas"
        self.prediction_classes = prefix + "prediction:classes"
        self.prediction_learning = prefix + "prediction:learning"
        self.prediction_models = prefix + "prediction:models"
        self.prediction_observed = prefix + "prediction:observed"
        self.prediction_applied = prefix + "prediction:applied"
        self.prediction_learner = prefix + "prediction:learner"
        self.prediction_revision = prefix + "prediction:revision"
        self._prediction = prefix + "prediction:"
        self._usage = prefix + "usage:"

    def usage(self, day: int) -> str:
        """Return the Redis key of a day's usage; days are counted from 1970."""
        return f"{self._usage}{day}"

    def model(self, application_class: str, version: int) -> str:
        """Return the Redis key of the bytes of a predictor's model."""
        return f"{self._prediction}model:{application_class}:{version}"

    def samples(self, application_class: str) -> str:
        """Return the Redis key of a class's samples for the predictor."""
        return f"{self._prediction}samples:{application_class}"


class ApplicationKeys:
    """Redis keys of an application; the module's second table describes their values.

    Args:
        name: The application's name, 1 to 200 characters without braces, white space, and slashes,
            which separate it from a model's name.

    Raises:
        ConfigError: If the name has another form.
    """

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name) or "/" in name:
            raise ConfigError(
                f"application name is {name!r}: 1 to 200 characters without slashes, braces or"
                " white space are allowed"
            )
        self.api_keys = f"justitia:{{{name}}}:keys"


def encode(key: str, value: Mapping[str, Any]) -> str:
    """Return the JSON of a value, to be stored under `key`.

    Raises:
        StoreError: If JSON cannot represent the value (a NaN, an infinity, a custom type).
    """
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(f"{key}: not a JSON object: {error}") from error


def decode_object(key: str, raw: bytes | None) -> JsonObject | None:
    """Parse the JSON object stored under `key`; None if the key does not exist.

    Raises:
        StoreError: If the value is not a JSON object; the message names the key, never the value.
    """
    if raw is None:
        return None
    try:
        value = json.loads(raw, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{key}: holds something that is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{key}: holds a JSON {type(value).__name__}, an object is expected")
    return value


def decode_hash(
    key: str, raw: Mapping[bytes, bytes], damage: list[str] | None = None
) -> dict[str, JsonObject]:
    """Parse the hash of JSON objects stored under `key`, in the order of its field names.

    Args:
        key: Key of the hash.
        raw: The hash.
        damage: If given, receives a message for each invalid field, and the field is left out;
            without it, an invalid field raises an error.

    Raises:
        StoreError: If a field is not UTF-8 or its value is not a JSON object; the message names key
            and field.
    """
    decoded: dict[str, JsonObject] = {}
    for field, value in sorted(raw.items()):
        try:
            try:
                name = field.decode()
            except UnicodeDecodeError as error:
                raise StoreError(f"{key}: field {field!r} is not UTF-8") from error
            decoded[name] = decode_object(f"{key}[{name}]", value) or {}
        except StoreError as error:
            if damage is None:
                raise
            damage.append(str(error))
    return decoded


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return a hash from the flat list of fields and values that a script returns."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def decode_count(key: str, raw: bytes | None, least: int = 1) -> int | None:
    """Parse the integer stored under `key`, at least `least`; None if the key does not exist.

    Raises:
        StoreError: If the value is anything else.
    """
    if raw is None:
        return None
    # `int` alone would accept signs, blanks and underscores
    if not raw.isdigit() or int(raw) < least:
        raise StoreError(f"{key}: holds {raw[:40]!r}, an integer >= {least} is expected")
    return int(raw)


def check_version(key: str, raw: bytes | None) -> None:
    """Check that data has this schema version, an older one, or none.

    Raises:
        StoreError: If the version is newer or cannot be read.
    """
    version = decode_count(key, raw)
    if version is not None and version > SCHEMA_VERSION:
        raise StoreError(
            f"{key}: version {version} was written by a newer justitia_ray; this one reads up to"
            f" {SCHEMA_VERSION}: upgrade it, or give it another Redis"
        )


_CHECK_KINDS = """
for i, expected in ipairs({{{kinds}}}) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= expected then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ': is a ' .. found .. ', a ' .. expected
      .. ' is expected')
  end
end
"""


def checking_kinds(*kinds: str) -> str:
    """Return Lua code that fails, naming the key, unless KEYS have these types in order."""
    return _CHECK_KINDS.format(kinds=", ".join(f"'{kind}'" for kind in kinds))


READ = """
local found = {}
for i, kind in ipairs(ARGV) do
  local counted = kind == 'counted'
  if counted then kind = 'hash' end
  local actual = redis.call('TYPE', KEYS[i]).ok
  if actual ~= 'none' and actual ~= kind then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ': is a ' .. actual .. ', a ' .. kind
      .. ' is expected')
  end
  if counted then
    found[i] = redis.call('HLEN', KEYS[i])
  elseif kind == 'hash' then
    found[i] = redis.call('HGETALL', KEYS[i])
  else
    found[i] = redis.call('GET', KEYS[i])
  end
end
return found
"""
"""Redis script that returns the values of keys. KEYS: the keys. ARGV: the type of each, `string`,
`hash`, or `counted` for a hash of which only the number of fields is returned.
"""


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
