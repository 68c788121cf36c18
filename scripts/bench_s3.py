"""Measure S3, the papers' baseline predictor: cost of DistilBERT, errors of small models."""

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from justitia_ray import __version__
from justitia_ray.errors import ConfigError
from justitia_ray.lab.report.out_of_fold import CLASSES, S3, predict_out_of_fold
from justitia_ray.lab.s3.config import TINY, S3Config
from justitia_ray.predictor.observation import Sample
from justitia_ray.sim.suites.inputs import load_inputs
from scripts.bench.machine import machine
from scripts.bench.statistics import percentile

SEED = 0
BATCH = 16
TRAINED_AT_ONCE = 8
PAPER = {
    "mean_relative_error": 4.52,
    "predict_ms": 55.7,
    "mean_jct_s": 366.7,
    "training": "about 2 h on a V100",
}
"""Figures of S3 in the paper (Justitia v1, Table II)."""
SAMPLES_OF_ALL = 100 * len(CLASSES)
"""Number of training samples: 100 of each class, as in the paper (Sec. IV-B)."""
VARIANTS = {
    "ln(cost)": TINY,
    "the cost itself": replace(TINY, target="cost"),
    "ln(cost), class named": replace(TINY, names_class=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    about = machine(("torch", "transformers", "tokenizers"))
    print(f"justitia_ray {__version__}: {', '.join(f'{k} {v}' for k, v in about.items())}")
    print(f"seed {SEED}; machine load (1 min) {os.getloadavg()[0]:.1f}", flush=True)
    texts = shuffled_inputs(options.data)
    found: dict[str, Any] = {"about": about, "seed": SEED, "paper": PAPER, "weights": "random"}
    if options.weights is not None:
        found["weights"] = options.weights
    found["full_size"] = measure_full_size(texts, options.weights, quick=options.quick)
    print(report(found["full_size"], found["weights"]), flush=True)
    if options.data is not None:
        variants = list(VARIANTS.items())[: 1 if options.quick else None]
        found["errors"] = {
            name: out_of_fold_errors(options.data, config) for name, config in variants
        }
        print(error_table(found["errors"]))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    data = os.environ.get("JUSTITIA_DATA") or None
    parser.add_argument("--data", type=Path, default=data, help="recorded runs and inputs")
    parser.add_argument("--weights", help="pretrained weights: a directory, or a name on the hub")
    parser.add_argument("--quick", action="store_true", help="fewer predictions, one variant")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the figures")
    return parser.parse_args(arguments)


def shuffled_inputs(data_dir: Path | None) -> list[str]:
    """Return all inputs in random order; without a directory, texts of Python's own library."""
    names = [name for name in CLASSES if data_dir is not None] or ["MRS", "CC", "KBQAV"]
    texts = [item.text for name in names for item in load_inputs(data_dir, name)[:60]]
    random.Random(SEED).shuffle(texts)
    return texts


def measure_full_size(texts: Sequence[str], weights: str | None, *, quick: bool) -> dict[str, Any]:
    """Return times, memory and size of DistilBERT as the papers use it.

    Times are CPU times of one thread, so other load on the machine does not count.
    """
    memory_mb = {"bare": resident_mb()}
    import torch

    from justitia_ray.lab.s3.model import S3Model, S3Target, train_s3
    from justitia_ray.lab.s3.weights import load_weights, random_weights, save_weights

    torch.set_num_threads(1)
    memory_mb["imported"] = resident_mb()
    config = S3Config(epochs=1, batch_size=TRAINED_AT_ONCE, held_back=0.0)
    parts = random_weights(config, texts) if weights is None else load_weights(weights, config)
    model = S3Model(config, *parts, S3Target(True, 12.0, 2.0, 1e3, 1e10), samples=1)
    with tempfile.TemporaryDirectory() as scratch:
        save_weights(Path(scratch), model.tokenizer, model.network)
        file_mb = sum(path.stat().st_size for path in Path(scratch).iterdir()) / 1e6
        load_s = timed(lambda: load_weights(scratch, config))
    count, batches = (10, 1) if quick else (60, 3)
    single = [timed(lambda text=text: model.predict("any", [text])) for text in texts[:count]]
    batched = [
        timed(lambda i=i: model.predict("any", texts[i * BATCH : (i + 1) * BATCH])) / BATCH
        for i in range(batches)
    ]
    memory_mb["predicting"] = resident_mb()
    samples = [Sample(1e4 + i, 1, 1, None, text) for i, text in enumerate(texts)]
    took_s = [
        timed(lambda n=n: train_s3({"any": samples[:n]}, weights=weights, config=config, seed=SEED))
        for n in (2 * TRAINED_AT_ONCE, 3 * TRAINED_AT_ONCE)
    ]
    memory_mb["training"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    step_s, epochs = took_s[1] - took_s[0], S3Config().epochs
    pieces = [len(encoded.ids) for encoded in model.tokenizer.encode_batch(texts[:count])]
    return {
        "parameters": model.parameters,
        "file_mb": file_mb,
        "load_s": load_s,
        "memory_mb": memory_mb,
        "pieces": {"median": median(pieces), "mean": fmean(pieces)},
        "single_ms": {"p50": 1000 * median(single), "p99": 1000 * percentile(single, 99)},
        "batched_ms": {"p50": 1000 * median(batched), "most": 1000 * max(batched)},
        "step_s": step_s,
        "step_samples": TRAINED_AT_ONCE,
        "extrapolated_training_s": step_s / TRAINED_AT_ONCE * SAMPLES_OF_ALL * epochs,
        "epochs": epochs,
    }


def out_of_fold_errors(data_dir: Path, config: S3Config) -> dict[str, Any]:
    """Return the errors of a small model with random weights on samples outside its training."""
    found = predict_out_of_fold(S3, data_dir, config)
    return {
        "config": asdict(config),
        "mean_relative_error": {name: fmean(found.errors[name]) for name in CLASSES},
        "mean": fmean(fmean(of_class) for of_class in found.errors.values()),
        "train_s": found.train_s,
        "predict_ms": found.predict_ms,
    }


def report(found: dict[str, Any], weights: str) -> str:
    memory, single, batched = found["memory_mb"], found["single_ms"], found["batched_ms"]
    hours = found["extrapolated_training_s"] / 3600
    return (
        f"\nDistilBERT at full size, weights {weights}: {found['parameters'] / 1e6:.1f} M"
        f" parameters, {found['file_mb']:.0f} MB on disk, read in {found['load_s']:.1f} s\n"
        f"  resident memory: {memory['bare']:.0f} MB before, {memory['imported']:.0f} MB with torch"
        f" and transformers, {memory['predicting']:.0f} MB predicting,"
        f" {memory['training']:.0f} MB at most in training\n"
        f"  one prediction: p50 {single['p50']:.0f} ms, p99 {single['p99']:.0f} ms; in batches of"
        f" {BATCH}: p50 {batched['p50']:.0f} ms each, worst {batched['most']:.0f} ms; inputs of"
        f" {found['pieces']['median']:.0f} word pieces (median; mean"
        f" {found['pieces']['mean']:.0f}), one thread (paper: {PAPER['predict_ms']} ms)\n"
        f"  training: {found['step_s']:.1f} s of one thread a step of {found['step_samples']};"
        f" extrapolated, not measured: {hours:.1f} h for {SAMPLES_OF_ALL} samples and"
        f" {found['epochs']} epochs (paper: {PAPER['training']})\n"
        "  Errors of this one are not given: pretrained weights were not at hand. The paper's is"
        f" {100 * float(str(PAPER['mean_relative_error'])):.0f} %, against 53 % of its MLPs."
    )


def error_table(found: dict[str, dict[str, Any]]) -> str:
    """Return a table of the small models' mean relative errors by class."""
    width = max(len(name) for name in found)
    lines = [
        "\nMean relative error of small ones with random weights, trained on the other half, %",
        " ".join([" " * width, *(f"{name:>6}" for name in CLASSES), "  mean  train s"]),
    ]
    for name, row in found.items():
        values = [row["mean_relative_error"][c] for c in CLASSES]
        cells = [f"{100 * value:6.0f}" for value in (*values, row["mean"])]
        lines.append(" ".join([f"{name:{width}}", *cells, f"{row['train_s']:8.1f}"]))
    return "\n".join(lines)


def timed(call: Any) -> float:
    """Return the CPU time of a call, in seconds."""
    started = time.process_time()
    call()
    return time.process_time() - started


def resident_mb() -> float:
    """Return this process's resident memory, in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(f"bench_s3: {error}")
