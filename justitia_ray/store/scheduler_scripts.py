"""What the scheduler's store does in Redis, in Lua: each script whole or not at all.

A script that fails is not undone, so everything that can fail comes before the first write. Numbers
are formatted with %.0f: Lua's are doubles, and an epoch taken from the wall clock has 13 digits.
"""

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
    """Return Lua that refuses, by name, a key of another type than this; in the order of KEYS."""
    return _CHECK_KINDS.format(kinds=", ".join(f"'{kind}'" for kind in kinds))


_EPOCH = """
local function epoch_in(key)
  local text = redis.call('GET', key) or '0'
  if not string.match(text, '^%d+$') then return nil end
  return tonumber(text)
end
"""

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
"""KEYS as many as ARGV; ARGV: the type of each, `string`, `hash`, or `counted` for a hash of which
only the number of fields is wanted. Returns their values."""

# One script, so that no office is taken on data that this version cannot read. An epoch is never
# below the milliseconds of Redis's clock. From 1, or only one above what is stored, it could be one
# that was given out before: a store that was emptied knows no more than what a living scheduler has
# put back into it, and that need not be the latest.
TAKE_OFFICE = (
    checking_kinds("string", "string")
    + _EPOCH
    + """
local schema, epoch, office = unpack(KEYS)
local version = redis.call('GET', schema) or ARGV[1]
if not string.match(version, '^[1-9]%d*$') or tonumber(version) > tonumber(ARGV[1]) then
  return redis.error_reply('ERR other schema version')
end
local stored = epoch_in(epoch)
if not stored then return redis.error_reply('ERR epoch is no number') end
local now = redis.call('TIME')
local now_ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local taken = string.format('%.0f', math.max(stored + 1, tonumber(ARGV[2]) + 1, now_ms))
redis.call('SET', schema, version)
redis.call('SET', epoch, taken)
redis.call('SET', office, '{"epoch":' .. taken .. ',' .. ARGV[3])
return {taken, version}
"""
)
"""KEYS: schema, epoch, office. ARGV: this version, an epoch to be above, the holder's JSON without
its brace. Returns the new epoch and the version of the data."""

MIGRATE = (
    checking_kinds("string", "string", "string", "hash")
    + _EPOCH
    + """
local schema, epoch, clock, applications = unpack(KEYS)
if epoch_in(epoch) ~= tonumber(ARGV[1]) then return 'overtaken' end
if redis.call('GET', schema) ~= ARGV[2] then return 'overtaken' end
if ARGV[4] ~= '' then redis.call('SET', clock, ARGV[4]) end
for i = 5, #ARGV, 2 do redis.call('HSET', applications, ARGV[i], ARGV[i + 1]) end
redis.call('SET', schema, ARGV[3])
return 'done'
"""
)
"""KEYS: schema, epoch, clock, applications. ARGV: our epoch, from which version, to which, the
clock or nothing, applications and their records by turns."""

# One script, so that nothing comes between the look at the epoch and the writes.
# HSET is called pair by pair: unpack() is bounded in Lua.
SAVE = (
    checking_kinds("string", "string", "string", "string", "string", "hash", "hash")
    + _EPOCH
    + """
local schema, epoch, office, clock, settings, applications, replicas = unpack(KEYS)
local stored, ours = epoch_in(epoch), tonumber(ARGV[1])
if not stored then return redis.error_reply('ERR epoch is no number') end
local told = string.format('%.0f', stored)
if stored > ours then return {told, redis.call('GET', office) or ''} end
if stored < ours then
  redis.call('SET', schema, ARGV[2])
  redis.call('SET', epoch, ARGV[1])
  redis.call('SET', office, ARGV[3])
  redis.call('DEL', clock, applications, replicas)
  return {told, ''}
end

local at = 3
local function argument()
  at = at + 1
  return ARGV[at]
end
local function set_string(key)
  local value = argument()
  if value ~= '' then redis.call('SET', key, value) end
end
local function set_fields(key)
  for _ = 1, tonumber(argument()) do
    local field = argument()
    redis.call('HSET', key, field, argument())
  end
end

set_string(clock)
set_string(settings)
set_fields(applications)
for _ = 1, tonumber(argument()) do redis.call('HDEL', applications, argument()) end
if argument() == 'replace' then redis.call('DEL', replicas) end
set_fields(replicas)
return {told, ''}
"""
)
"""KEYS: schema, epoch, office, clock, settings, applications, replicas. ARGV: see
`SchedulerStore.save`. Returns the epoch that was stored, and, if it is a later one, its holder.
Under an earlier one (it was emptied or set back) what is stored is of another time, and what was to
be written is a part only: the store is left with the epoch alone, for all to be written at once."""
