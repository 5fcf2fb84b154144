"""Record what the engine computes today, for `test_same_bits.py`, and print what was recorded.

    python tests/recorded/record.py                 the bits of trained parameters on this processor
    python tests/recorded/record.py --simulated     the simulated jobs anew (the same on every machine)
    python tests/recorded/record.py --check         change nothing; exit code 1 where something differs

Every call also simulates all jobs and says which of them differ from their records. A record is made before a change
that must not change any result, never after one to make the test pass.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # `bench`, which no installation holds
from digests import FAULTS, TRAINED, WORKERS, made_with, processor, simulated_comparison, simulated_faults, trained
from engine_access import COMPARISONS

import flegel

FILE = Path(__file__).with_name("records.json")
Record = dict[str, dict[str, str]]


def read() -> dict[str, Any]:
    """`processors`: by name, versions and bits; `simulated`: by job, digests of its parts."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write(records: dict[str, Any]) -> None:
    """One line a job, so that a difference names it."""
    lines = [f'    "{name}": {json.dumps(parts)}' for name, parts in records["simulated"].items()]
    processors = json.dumps({"processors": records["processors"]}, indent=1)[1:-2]
    FILE.write_text("{" + processors + ',\n "simulated": {\n' + ",\n".join(lines) + "\n }\n}\n", encoding="utf-8")


def bits() -> Record:
    """Every algorithm with every number of workers, by `algorithm workers`."""
    with flegel.LocalCluster(workers=max(WORKERS)) as cluster:
        return {f"{name} {workers}": trained(name, workers, cluster) for name in TRAINED for workers in WORKERS}


def simulations() -> Record:
    """Every simulated job, by `kind seed` or `comparison name`."""
    found = {f"{kind} {seed}": simulated_faults(kind, seed) for kind, seeds in FAULTS.items() for seed in range(seeds)}
    return found | {f"comparison {name}": simulated_comparison(name) for name in COMPARISONS}


def differing(found: Record, recorded: Record) -> Iterator[str]:
    """`job: the parts that differ`, for every job of either side."""
    for job in sorted({*found, *recorded}):
        one, other = found.get(job, {}), recorded.get(job, {})
        if parts := [part for part in {**other, **one} if one.get(part) != other.get(part)]:
            yield f"{job}: {', '.join(parts)}"


def told(what: str, found: Record, recorded: Record) -> bool:
    """Print how many jobs are as recorded, and which are not; True where all are."""
    if not recorded:
        print(f"{what}: {len(found)} jobs, no record yet")
        return False
    different = list(differing(found, recorded))
    print(f"{what}: {len(found)} jobs, {len(different)} differ from their records")
    for line in different:
        print(f"  {line}")
    return not different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="record the simulated jobs, not only compare them")
    parser.add_argument("--check", action="store_true", help="record nothing")
    options = parser.parse_args()
    records = read() if FILE.exists() else {"processors": {}, "simulated": {}}
    name, own = processor(), {"made_with": made_with(), "bits": bits()}
    print(f"{name}, {', '.join(f'{k} {v}' for k, v in own['made_with'].items())}")
    for job, fields in own["bits"].items():
        print(
            f"  {job}: objective {fields['objective']}, "
            + ", ".join(f"{k} {v[:12]}" for k, v in fields.items() if k != "objective")
        )
    same = told(f"bits on {name}", own["bits"], records["processors"].get(name, {}).get("bits", {}))
    found = simulations()
    same = told("simulated", found, records["simulated"]) and same
    if options.check:
        sys.exit(0 if same else 1)
    records["processors"][name] = own
    if options.simulated:
        records["simulated"] = found
    write(records)
    print(f"recorded in {FILE}: bits of {name}" + (", simulated jobs" if options.simulated else ""))


if __name__ == "__main__":
    main()
