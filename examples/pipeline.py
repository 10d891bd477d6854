"""A pruned model in transformers' own pipeline: one line more than without.

    python examples/pipeline.py VIDEO [--model MCG-NJU/videomae-base-finetuned-kinetics] [--r 64]

`--model` is a hub id, or a folder with a model and its image processor.
"""

from __future__ import annotations

import argparse
import time

from transformers import pipeline

import sta
from sta.video import ViewSpec, read_views


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", help="a video file")
    parser.add_argument("--model", default="MCG-NJU/videomae-base-finetuned-kinetics")
    parser.add_argument("--r", type=int, default=64, help="tokens to drop per frame at first")
    parser.add_argument("--stride", type=int, default=4, help="distance between frames")
    options = parser.parse_args()

    classify = pipeline("video-classification", model=options.model, device="cpu")
    config = classify.model.config
    shape = (1, config.num_frames, 3, config.image_size, config.image_size)
    # The pipeline takes a file where torchcodec is installed, and frames (T, H, W, 3) anywhere.
    spec = ViewSpec(frames=config.num_frames, stride=options.stride, size=config.image_size)
    frames = read_views(options.video, spec).clips()[0]
    for r in (0, options.r):
        sta.apply(classify.model, sta.STAConfig(r=r))  # the one line
        start = time.perf_counter()
        predictions = classify(frames, top_k=3)
        seconds = time.perf_counter() - start
        print(f"r={r}: {sta.gflops(classify.model, shape):.1f} GFLOPs, {seconds:.2f} s")
        for prediction in predictions:
            print(f"  {prediction['score']:.3f} {prediction['label']}")


if __name__ == "__main__":
    main()
