"""Draw a comparison of servers: output tokens per second by prompt set and number of streams.

python -m bench.plot bench/results/servers.json docs/images/servers.png
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

LABELS = {
    "turing": "Turing Engine, Q4_1",
    "llama-q4_1": "llama-server, Q4_1",
    "llama-q4_0": "llama-server, Q4_0",
    "vllm": "vLLM CPU, bf16",
    "turing-torch": "Turing Engine in fp32 (torch)",
}
TITLES = {
    "chat": "45-token prompts",
    "long": "500-token prompts",
    "prefix": "700 shared + 34 own tokens",
}


def draw(summary: list[dict[str, Any]], path: Path) -> None:
    """Write one panel a prompt set, one group of bars a number of streams, to a PNG at ``path``."""
    sets = list(dict.fromkeys(row["set"] for row in summary))
    servers = list(dict.fromkeys(row["server"] for row in summary))
    figure, panels = plt.subplots(
        1, len(sets), figsize=(4.2 * len(sets), 3.6), layout="constrained", squeeze=False
    )
    for panel, name in zip(panels[0], sets, strict=True):
        rows = [row for row in summary if row["set"] == name]
        streams = sorted({row["concurrency"] for row in rows})
        width = 0.8 / len(servers)
        for index, server in enumerate(servers):
            rates = {r["concurrency"]: r["out_tok_s"] for r in rows if r["server"] == server}
            places = [place + index * width for place, n in enumerate(streams) if n in rates]
            heights = [rates[n] for n in streams if n in rates]
            bars = panel.bar(places, heights, width, label=LABELS.get(server, server))
            panel.bar_label(bars, fmt="%.0f", fontsize=7)
        panel.set_title(TITLES.get(name, name))
        panel.set_xticks([i + 0.4 - width / 2 for i in range(len(streams))], map(str, streams))
        panel.set_xlabel("streams")
    panels[0][0].set_ylabel("output tokens per second")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    draw(json.loads(source.read_text())["summary"], target)
