"""Count the files and functions that one submission and one inference pass through, by folder."""

import argparse
import sys
from collections.abc import Sequence

from justitia_ray import __version__
from justitia_ray.cli.text_table import text_table
from scripts.bench.trace import CallTrace, trace_granted_submission, trace_inference


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/trace_inference", description=__doc__)
    parser.add_argument(
        "--stream", action="store_true", help="trace a stream instead of a whole answer"
    )
    parser.add_argument("--verbose", action="store_true", help="name every function")
    options = parser.parse_args(arguments)
    print(f"justitia_ray {__version__}")
    kind = "A streamed inference" if options.stream else "A unary inference"
    for title, trace in (
        ("A granted submission in the core", trace_granted_submission()),
        (f"{kind}, from the call to its answer", trace_inference(stream=options.stream)),
    ):
        print(f"\n{title}\n{table(trace)}")
        service = len(trace.service_functions)
        print(f"{service} functions of the service: no lambda, comprehension or engine's")
        if options.verbose:
            for (file, name), count in sorted(trace.calls.items()):
                print(f"  {count:6}  {file}  {name}")
    return 0


def table(trace: CallTrace) -> str:
    """Return a table with a row for each folder, and the sums."""
    rows: list[tuple[str, ...]] = [("folder", "files", "functions", "calls")]
    folders = trace.counts_by_folder()
    rows += [(name, *map(str, counts)) for name, counts in folders.items()]
    rows.append(("all", *(str(sum(c[i] for c in folders.values())) for i in range(3))))
    return text_table(rows, numbers_from=1)


if __name__ == "__main__":
    sys.exit(main())
