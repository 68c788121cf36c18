"""What the predictor's store does in Redis, in Lua: each script whole or not at all.

A script that fails is not undone, so everything that can fail comes before the first write.
"""

from justitia_ray.store.scheduler_scripts import checking_kinds

# The predictor may be the first to write, before any scheduler took office.
ADD_OBSERVED = (
    checking_kinds("string", "stream")
    + """
redis.call('SET', KEYS[1], ARGV[1], 'NX')
for i = 3, #ARGV do redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'o', ARGV[i]) end
"""
)
"""KEYS: schema, observed. ARGV: version, most entries, JSON of each."""

HOLD = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
"""KEYS: learner. ARGV: who, milliseconds. The holder's time begins anew; nobody else gets in."""

RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

SAVE = (
    checking_kinds("string", "string", "hash", "hash", "string", "stream", "string")
    + """
local learner, schema, classes, learning, applied, observed, revision = unpack(KEYS, 1, 7)
if redis.call('GET', learner) ~= ARGV[1] then return 0 end
for i = 8, #KEYS do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= 'list' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ': is a ' .. found)
  end
end
local at = 4
local function argument()
  at = at + 1
  return ARGV[at]
end
redis.call('SET', schema, ARGV[2], 'NX')
for _, key in ipairs({classes, learning}) do
  for _ = 1, tonumber(argument()) do
    local name = argument()
    redis.call('HSET', key, name, argument())
  end
end
for i = 8, #KEYS do
  for _ = 1, tonumber(argument()) do redis.call('RPUSH', KEYS[i], argument()) end
  redis.call('LTRIM', KEYS[i], -tonumber(ARGV[3]), -1)
end
redis.call('SET', applied, ARGV[4])
redis.call('XTRIM', observed, 'MINID', ARGV[4])
return redis.call('INCR', revision)
"""
)
"""KEYS: learner, schema, classes, learning, applied, observed, revision, histories. ARGV: see
`PredictionStore.save`. Returns the new revision, 0 if another one learns."""

SAVE_INDEX = (
    checking_kinds("hash", "string", "string")
    + """
local models, schema, revision, active = unpack(KEYS, 1, 4)
if (redis.call('HGET', models, ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('SET', schema, ARGV[4], 'NX')
redis.call('HSET', models, ARGV[1], ARGV[3])
if ARGV[5] ~= '' then redis.call('SET', active, ARGV[5]) end
for i = 5, #KEYS do redis.call('DEL', KEYS[i]) end
return redis.call('INCR', revision)
"""
)
"""KEYS: models, schema, revision, the active model, models to delete. ARGV: class, index that was
read, index to write, version, bytes of the active model or nothing."""
