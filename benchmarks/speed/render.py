"""Speed of rendering the embedded data sets, in images per second on one processor.

python benchmarks/speed/render.py
python benchmarks/speed/render.py --images 1000
"""

from __future__ import annotations

import argparse
import time

from tta_bench.datasets.procedural import scenes, shapes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=300)
    args = parser.parse_args()
    for name, render in (("shapes", shapes.render), ("scenes", scenes.render)):
        started = time.perf_counter()
        for index in range(args.images):
            render("train", index)
        print(f"{name:8}{args.images / (time.perf_counter() - started):8.0f} images per second")


if __name__ == "__main__":
    main()
