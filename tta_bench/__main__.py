"""``python -m tta_bench`` is ``tta-bench``."""

from tta_bench.cli.app import app

if __name__ == "__main__":
    app(prog_name="tta-bench")
