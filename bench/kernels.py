"""Speed of the native kernels on one thread, per instruction set, and the roofs of the machine.

Runs the program ``bench_kernels`` of the native build, once per instruction set.

    python -m bench.kernels >bench/results/kernels.json
"""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path("build/native/kernels/bench_kernels")
ISAS = ("avx512_bf16", "avx512", "avx2", "portable")


def measure(program: Path) -> dict[str, Any]:
    """Return what the program reports, for every instruction set that this processor has."""
    report: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "lines": []}
    for isa in ISAS:
        done = subprocess.run([program, isa], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            report["lines"] += [json.loads(line) for line in done.stdout.splitlines()]
    if not report["lines"]:
        raise RuntimeError(f"{program} reported nothing")
    return report


def main() -> int:
    """Print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, default=PROGRAM)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(measure(options.program), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
