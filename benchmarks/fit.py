"""How long `sta.fit` takes: seconds and processor seconds, for as many clips as it takes by itself.

    python benchmarks/fit.py [--model vit-s-k400] [--clips 32]

The weights are random, which changes the choice but hardly the time: what must be computed is the
same, but for where the last two candidates are told apart (--clips 9 is the least that any model
needs). Give the number of cores beside the figures.
"""

from __future__ import annotations

import argparse
import time

import torch

import sta
from sta.backbones.zoo.video_model import load_video_model
from sta.tuning.fit import CLIPS
from sta.video.clips import drawn_clips


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="vit-s-k400")
    parser.add_argument("--weights", action="store_true", help="the published ones, not random")
    parser.add_argument("--clips", type=int, default=CLIPS, help="the most to compare on")
    options = parser.parse_args()
    opened = load_video_model(options.model, random_weights=not options.weights)
    clips = drawn_clips(range(options.clips), opened.clip.views)
    start, busy = time.perf_counter(), time.process_time()
    found = sta.fit(clips, opened, progress=False)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    print(found)
    forwards = sum(one.fidelity.clips for one in found.scores)
    print(
        f"{options.model}, {options.clips} clips at most: {seconds:.0f} s, {busy:.0f} processor "
        f"seconds on {torch.get_num_threads()} threads, {len(found.scores)} candidates, "
        f"{forwards} pruned clips"
    )


if __name__ == "__main__":
    main()
