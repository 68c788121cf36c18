"""Invalid arguments give one sentence before any work: no traceback and no file."""

from pathlib import Path
from typing import Any

import pytest

from justitia_ray.cli.main import main
from justitia_ray.predictor.model_directory import ModelDirectory
from tests.unit.cli.test_predictor import write_runs
from tests.unit.cli.test_simulate import APPLICATION
from tests.unit.sim.data_directory import write_lines

PAST: dict[str, Any] = {
    "class": "report",
    "input": "text",
    "inferences": [{"prompt_tokens": 1, "output_tokens": 2}],
}

IMPORT = "data import --file past.jsonl"
CREATE = "keys create --file k.yaml"
EVALUATE = "predictor evaluate --data runs --out x"
ROLLBACK = "predictor rollback report --models models"
REPLAY = "replay --workload w.jsonl --out x"
REPORT = "report --out x --data runs"
SIMULATE = "simulate --workload w.jsonl --out x"
M = "--kv-tokens 90"
FCFS = f"{SIMULATE} --policy fcfs {M}"
WRITE = "workload --out x"
MISTAKES = [
    ("calibrate --runs a.csv --kv-tokens 5", "--out is missing"),
    ("calibrate --runs a.csv --out p.yaml", "--kv-tokens must be a whole number >= 1, got None"),
    ("calibrate --runs a.csv --kv-tokens 0 --out p.yaml", "a whole number >= 1, got 0"),
    ("calibrate --check a.csv", "--profile is missing"),
    ("calibrate --check a.csv --profile x --added-prompt-tokens -1", "a whole number >= 0, got -1"),
    ("calibrate --runs a.csv --kv-tokens 5 --out no/p", "no/p: there is no directory no to write"),
    ("calibrate --runs none.csv --kv-tokens 5 --out p.yaml", "none.csv: cannot be read"),
    ("check-config none.yaml", "none.yaml: No such file or directory"),
    ("check-config day.yaml", "day.yaml: is not YAML: day is out of range for month"),
    ("env day.yaml", "day.yaml: is not YAML: day is out of range for month"),
    ("check-config deep.yaml", "deep.yaml: is not YAML: it nests too deep"),
    ("check-config twice.yaml", "the key 'tenants' is given twice in one mapping"),
    ("dashboard --out no/d.json", "--out no/d.json cannot be written: No such file or directory"),
    (f"{IMPORT} --url --skip 2", "--skip must be 0 to 1, got 2"),
    (f"{IMPORT} --out x --skip 1", "--skip goes with --url, not with --out"),
    (f"{IMPORT} --out x --model m", "--model goes with --url, not with --out"),
    (f"{IMPORT} --out full", "must be a new directory, has apps/ already"),
    ("data import --out x --file staged.jsonl", "class KBQAV is one whose stages are known"),
    ("data import --url --file empty", "empty: holds no application"),
    *((f"doctor --interval-s={s}", "--interval-s is") for s in ("0.5", "-1", "nan", "inf")),
    ("keys list", "--file or --config is required"),
    ("keys list --file none.yaml", "none.yaml: cannot be read: No such file or directory"),
    ("keys list --file empty", "empty: is empty: a mapping with `keys`, a list, is required"),
    ("keys list --file k.yaml --application a", "--application goes with --config, not with"),
    ("keys list --config none.yaml", "none.yaml: No such file or directory"),
    (CREATE, "tenant is required without the scope proxy or operate"),
    (f"{CREATE} --tenant /", "tenant is '/': a path of A-Z a-z 0-9"),
    (f"{CREATE} --tenant a --scope all", "scopes has 'all': a list of infer, own, operate, proxy"),
    (f"{CREATE} --tenant a --max-weight 0", "max_weight is 0.0: a number above 0, 1e+06 at most"),
    (f"{CREATE} --tenant a --expires soon", "--expires is 'soon': a number of days or hours"),
    (f"{CREATE} --tenant a --expires 2020-01-01", "'2020-01-01': a time to come is allowed"),
    (f"{CREATE} --tenant a --audit no/a.log", "--audit no/a.log: cannot be written: No such file"),
    ("keys create --file no/k.yaml --tenant a", "no/k.yaml: cannot be written: No such file"),
    ("keys create --file full --tenant a", "full: cannot be read: Is a directory"),
    ("keys revoke 0123456 --file k.yaml", "ID must be 8 digits of 0-9 a-f, as `justitia keys"),
    ("keys revoke 01234567 --file none.yaml", "none.yaml: cannot be read: No such file"),
    (f"{EVALUATE} --seed=-1", "seed must be a whole number of 0 to 4294967295, got -1"),
    (f"predictor train --data runs --out x --seed={2**32}", "4294967295, got 4294967296"),
    (f"{FCFS} --seed=-1", "seed must be a whole number of 0 to 4294967295, got -1"),
    (f"{EVALUATE} --classes C", "--classes must be among A, few, got 'C'"),
    (f"{EVALUATE} --holdout nowhere", "nowhere/recorded: cannot be read"),
    (f"{EVALUATE} --classes few", "class few: 4 samples are too few"),
    ("predictor list --models none", "none: no such directory of models"),
    ("predictor list --models models --model n", "--model goes with --url, not with --models"),
    ("predictor rollback x --models models", "has no models of class 'x', but of report"),
    (f"{ROLLBACK} --to 9", "class report: version is 9: one of 0, 1, 2 is allowed"),
    (f"{ROLLBACK} --to -1", "--to must be an integer >= 0, got -1"),
    (f"{ROLLBACK} --to 1 --release", "--to and --release cannot be given together"),
    *((f"{REPLAY} --speed={s}", f"above 0, got {s}") for s in ("0", "-1", "nan", "inf")),
    *((f"{REPLAY} --timeout-s={s}", f"above 0, got {s}") for s in ("0", "-1", "nan", "inf")),
    ("replay --workload none.jsonl --out x", "none.jsonl: cannot be read"),
    ("replay --workload w.jsonl --out w.jsonl", "--out w.jsonl: must be a directory"),
    (f"{REPORT} --seeds 0", "--seeds must be a whole number of at least 1, got 0"),
    (f"{REPORT} --first-seed -1", "--first-seed must be a whole number of at least 0, got -1"),
    (f"{REPORT} --workers -1", "--workers must be a whole number of at least 1, got -1"),
    (f"{REPORT} --only none", "--only none: must be one of "),
    ("report --out x --data /nowhere", "--data must be a directory, got '/nowhere'"),
    ("report --out x", "--data must name the data directory, or JUSTITIA_DATA; neither is set"),
    ("shutdown --config f.yaml --name a", "--config and --name cannot be given together"),
    ("shutdown --model m", "--model needs --name"),
    ("shutdown --config none.yaml", "none.yaml: No such file or directory"),
    (f"{SIMULATE} --policy fcfs", "--kv-tokens must be given"),
    (f"{SIMULATE} --policy fcfs --kv-tokens 0", "--kv-tokens must be a number >= 1, got 0"),
    (f"{SIMULATE} --policy fifo {M}", "fifo"),
    (f"{SIMULATE} --policy no.such:Policy {M}", "no.such"),
    (f"{FCFS} --replicas 0", "--replicas must be a number from 1 to 10,000, got 0"),
    (f"{FCFS} --iteration-s 0", "--iteration-s must be a number > 0"),
    (f"{FCFS} --iteration-s -1", "--iteration-s must be a number >= 0, got -1"),
    (f"{FCFS} --iteration-s nan", "--iteration-s must be a number >= 0, got nan"),
    (f"{FCFS} --prefill-s-per-token -1", "--prefill-s-per-token must be a number >= 0"),
    (f"{FCFS} --max-num-seqs 0", "--max-num-seqs must be a number >= 1"),
    (f"{FCFS} --report-interval-s -1", "--report-interval-s must be a number >= 0"),
    (f"{FCFS} --prediction maybe", "prediction must be oracle, learned, or noisy:λ"),
    (f"{FCFS} --prediction noisy:0.5", "prediction must be oracle, learned, or noisy:λ"),
    (f"{FCFS} --models full", "--models needs --prediction learned, got 'oracle'"),
    (f"{FCFS} --prediction learned --models full", "must hold a model of at least one class"),
    (f"{FCFS} --engine-profile no-such", "no-such"),
    (f"{FCFS} --engine-profile a10g-llama2-7b --iteration-s 1", "--iteration-s must not"),
    (f"{FCFS} --set fcfs", "--set must be POLICY.OPTION=VALUE, got 'fcfs'"),
    (f"{FCFS} --set fcfs.backfill", "--set must be POLICY.OPTION=VALUE"),
    (f"{FCFS} --set fcfs.=1", "--set must be POLICY.OPTION=VALUE"),
    (f"{FCFS} --set vtc.unit=tenant", "'vtc' is not one of the policies that are run: fcfs"),
    (f"{FCFS} --set fcfs.unit=tenant", "'unit' is not one of"),
    (f"{FCFS} --set fcfs.backfill=2.5", "2.5 must be a whole number of at least 0"),
    (f"{FCFS} --set fcfs.backfill=[", "--set fcfs.backfill=[: is not YAML: "),
    (
        f"{SIMULATE} --policy justitia {M} --clock nominal --set justitia.cost=compute",
        "no nominal rate",
    ),
    (f"{SIMULATE} --policy fcfs --kv-tokens 6", "application 'a', inference '0'"),
    *((f"status --watch={s}", "a number of seconds above 0 is") for s in ("0", "-1", "nan", "inf")),
    ("status --applications 1001", "--applications is 1001: an integer from 0 to 1,000 is allowed"),
    ("status --url localhost:8000", "base_url must start with http:// or https://"),
    ("status --url http://", "base_url is 'http://': a host, and a port from 1 to 65535, are"),
    ("top --url http://h:99999", "base_url is 'http://h:99999': a host, and a port from"),
    ("top --url http://h?x=1", "base_url is 'http://h?x=1': a query (?) or fragment (#) is not"),
    ("top --url http://h#x", "base_url is 'http://h#x': a query (?) or fragment (#) is not"),
    (
        f"{SIMULATE} --policy fcfs --kv-tokens 90 --replicas 10001",
        "--replicas must be a number from 1 to 10,000, got",
    ),
    ("why a --url http://[::1", "base_url is 'http://[::1': Invalid port"),
    *(
        (f"{command} --timeout-s={s}", f"--timeout-s is {s}: a number of seconds above 0 is")
        for command in ("usage", "doctor")
        for s in ("0", "-1", "nan")
    ),
    (f"{WRITE} --suite nine", "suite must be one of nine-class, "),
    (f"{WRITE} --suite nine-class --count 0", "count must be a whole number >= 1, got 0"),
    (f"{WRITE} --suite nine-class --data /nowhere", "must be a directory, got '/nowhere'"),
    (f"{WRITE} --from /nowhere", "/nowhere: cannot be read"),
    (f"{WRITE} --from /nowhere --data /", "--data goes with --suite, not with --from"),
]


@pytest.fixture(scope="module")
def input_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a workload, histories, recorded runs, models and other files."""
    directory = tmp_path_factory.mktemp("mistakes")
    write_lines(directory / "w.jsonl", APPLICATION)
    write_lines(directory / "past.jsonl", PAST, PAST)
    write_lines(directory / "staged.jsonl", PAST | {"class": "KBQAV"})
    write_lines(directory / "empty")
    write_runs(directory / "runs", "A", range(30))
    write_runs(directory / "runs", "few", range(4))
    for content in (b"1", b"2"):
        ModelDirectory(directory / "models").publish("report", content, {})
    (directory / "day.yaml").write_text("applications: 2026-02-30")
    (directory / "deep.yaml").write_text("[" * 1_000)
    (directory / "twice.yaml").write_text("tenants: {a: {}}\napplications: []\ntenants: {b: {}}")
    (directory / "full" / "apps").mkdir(parents=True)
    return directory


@pytest.mark.parametrize(("command", "said"), MISTAKES)
def test_invalid_option_prints_one_sentence_and_writes_no_file(
    command: str,
    said: str,
    input_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the option, its value and the allowed values."""
    monkeypatch.chdir(input_dir)
    monkeypatch.delenv("JUSTITIA_DATA", raising=False)
    before = {*input_dir.rglob("*")}
    status = main(command.split())
    printed = capsys.readouterr()

    assert (2, "") == (status, printed.out)
    [line] = printed.err.splitlines()
    assert line.startswith(f"justitia {command.split()[0]}: ")
    assert said in line
    assert before == {*input_dir.rglob("*")}
