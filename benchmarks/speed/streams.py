"""Seconds to schedule 750,000 samples, ImageNet-C's fifteen domains of 50,000 images, for each kind of stream.

    python benchmarks/speed/streams.py
    python benchmarks/speed/streams.py --kinds csc cdc_2d --per-domain 5000 --repeats 10

Only the order is generated; no images are read. Prints the median and the slowest of the repeats.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

from tta_bench.streams import KINDS, STANDARD_ORDER, make_stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--per-domain", type=int, default=50_000, help="images of each domain")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    labels = {name: np.arange(args.per_domain) % 1000 for name in STANDARD_ORDER}
    for kind in args.kinds:
        seconds = []
        for _ in range(args.repeats):
            started = time.perf_counter()
            samples = make_stream(kind, labels=labels).num_samples
            seconds.append(time.perf_counter() - started)
        print(f"{kind:8} {samples:9,} samples  {median(seconds):6.2f} s  slowest {max(seconds):6.2f} s", flush=True)


if __name__ == "__main__":
    main()
