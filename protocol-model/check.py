"""Check the protocol: the specification holds, and without any one of its rules it does not.

python protocol-model/check.py            everything but --design, bounded to a few minutes
python protocol-model/check.py --full     no bounds on states: an hour and more
python protocol-model/check.py --design   what the first design does wrong, property by property
python protocol-model/check.py --trace    print the steps of every counterexample (the shortest)

The exit status is 0 when all is as expected.
"""

from __future__ import annotations

import argparse
import sys
import time

from protocol_model.catalogue import Case, first_design, less_one_rule, random_walks, specification
from protocol_model.search import Limits


def _run(case: Case, limits: Limits, shows_steps: bool, says_nothing: bool = False) -> bool:
    """Say what a search finds; return whether it found something wrong."""
    began = time.monotonic()
    found = case.run(limits)
    if found.violation is None and says_nothing:
        return False
    seconds = time.monotonic() - began
    steps = f"{len(found.labels)} steps, " if found.violation else ""
    seen = f"{'all ' if found.is_complete else ''}{found.states} states"
    print(
        f"  {case.name:24} {found.violation or 'holds'}  ({steps}{seen}, {seconds:.1f} s)",
        flush=True,
    )
    if shows_steps:
        _print_steps(list(found.labels))
    return found.violation is not None


def _print_steps(labels: list[str]) -> None:
    for number, label in enumerate(labels, 1):
        print(f"      {number}. {label}")


def _design(limits: Limits) -> int:
    print("the first design")
    for case in first_design():
        _run(case, limits, shows_steps=True, says_nothing=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="search until everything is seen")
    parser.add_argument("--design", action="store_true", help="search the first design")
    parser.add_argument("--trace", action="store_true", help="print counterexamples step by step")
    parser.add_argument("--walk-seconds", type=float, default=10, help="for random walks")
    parser.add_argument("--seed", type=int, default=0, help="of the first random walk")
    options = parser.parse_args()
    limits = Limits(10**7, 3600.0) if options.full else Limits()
    if options.design:
        return _design(limits)
    wrong = []
    print("the specification (what is wrong with it is printed with its steps)")
    for case in specification():
        if _run(case, limits, shows_steps=True):
            wrong.append(case.name)
    print("the specification less one rule (each must break)")
    for case in less_one_rule():
        if not _run(case, Limits(limits.states, 60.0), options.trace):
            wrong.append(f"nothing breaks without {case.name}")
    count, violation, labels = random_walks(options.walk_seconds, options.seed)
    print(f"{count} random walks, after each of which all faults stop")
    if violation:
        wrong.append(violation)
        print(violation)
        _print_steps(labels)
    print("\n".join(["WRONG:", *wrong]) if wrong else "all as expected")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
