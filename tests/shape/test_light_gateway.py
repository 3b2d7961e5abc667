"""The gateway starts fast and installs small: it never loads what only engines need."""

import json
import subprocess
import sys

from shape.tree import modules

HEAVY = {"torch", "transformers", "numpy", "turing_engine", "turing_kernels"}


def test_no_gateway_module_loads_the_engine_or_its_packages() -> None:
    names = [name for name in modules() if name.startswith(("turing_gateway", "turing_protocol"))]
    code = "import importlib, json, sys\n"
    code += f"for name in {[n for n in names if not n.endswith('__main__')]!r}:\n"
    code += "    importlib.import_module(name)\n"
    code += "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(json.loads(run.stdout)) == set()
