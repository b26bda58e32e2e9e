"""Check before a long run what could go wrong in it."""

from __future__ import annotations

import platform
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tta_bench.config.compose import Composed, build, compose_run, require
from tta_bench.datasets.base import CleanImages, DomainDataset, has_label_maps
from tta_bench.experiments.bench import make_plan
from tta_bench.experiments.known_protocols import Count, describe_protocol, mean_error
from tta_bench.experiments.memory_estimate import estimate_memory
from tta_bench.experiments.notices import Notice, data_notices, error_notice, label_pairs, model_notices
from tta_bench.experiments.opened import Opened
from tta_bench.experiments.run import Run
from tta_bench.experiments.source_cache import check_source
from tta_bench.files import free_space
from tta_bench.loggers.wandb_run import server, wandb_mode
from tta_bench.prepare.download import PUBLIC, md5_of

State = Literal["ok", "note", "problem"]
COLORS = {"ok": "green", "note": "yellow", "problem": "bold red"}
REACH = 3.0  # timeout for W&B's server, in seconds
SAMPLED = 8  # number of images of each domain whose size is checked
BATCH = 25


class Check(NamedTuple):
    """One line of the table."""

    name: str
    found: str
    state: State = "ok"


def doctor(words: Sequence[str], console: Console, images: int = 300) -> list[Check]:
    """Check data, model, disk, memory and W&B for the words of a run or a bench; nothing is written.

    Args:
        words: As for ``tta-bench run``, or with ``methods=[...]`` as for ``tta-bench bench``.
        console: Shows what is being checked.
        images: Number of images of the stream on which the source model is evaluated to see whether it fits the data;
            a third as many source images are used.

    Raises:
        ConfigError: If the words are wrong.
    """
    jobs = _jobs(words)
    checks: list[Check] = []

    def look(title: str, steps: Callable[[], Iterator[Check]]) -> None:
        with console.status(f"checking {title} ..."):
            try:
                checks.extend(steps())
            except (ValueError, OSError, RuntimeError, AssertionError) as error:  # the last two by torch and timm
                checks.append(Check(title, str(error), "problem"))

    look("machine", _machine)
    opened: list[DomainDataset] = []
    look("data", lambda: _data(jobs[0], opened))
    runs: list[Run] = []
    if opened:
        look("archives", lambda: _archives(jobs[0], opened[0]))
        look("model", lambda: _model(jobs[0], opened[0], runs))
    if runs:
        look("images", lambda: _sizes(runs[0]))
        if not any(check.state == "problem" for check in checks) and not has_label_maps(opened[0]):
            look("source error", lambda: _source_error(runs[0], images))
        for job in jobs:
            look(f"method {job.choices['method']}", partial(_method, job, opened[0]))
    look("disk", lambda: _disk(jobs[0]))
    look("W&B", lambda: _wandb(jobs[0]))
    return checks


def checks_table(checks: Sequence[Check]) -> Table:
    """The checks as a table, one row each."""
    table = Table("what", "found", "", title="doctor")
    for check in checks:
        table.add_row(check.name, escape(check.found), f"[{COLORS[check.state]}]{check.state}[/]")
    return table


def _jobs(words: Sequence[str]) -> list[Composed]:
    if any(word.startswith("methods=") for word in words):
        plan = make_plan(words)
        jobs = plan.compose()[: len(plan.methods)]  # of the first seed
    else:
        jobs = [compose_run(words)]
    for job in jobs:
        require(job.config)
    return jobs


def _machine() -> Iterator[Check]:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "lightning", "timm", "numpy"))
    yield Check("versions", f"tta_bench {version('tta_bench')}, Python {platform.python_version()}, {versions}")
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        yield Check("device", f"{torch.cuda.get_device_name()}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free")
    else:
        yield Check("device", f"no GPU; {torch.get_num_threads()} CPU threads", "note")


def _data(job: Composed, opened: list[DomainDataset]) -> Iterator[Check]:
    domains: DomainDataset = build(job.config.dataset)
    told = domains.describe()
    sizes = [len(domains.labels(name)) for name in domains.domains]
    yield Check("data", f"{domains.name}: {len(sizes)} domains of {_range(sizes)} images, {sum(sizes)} in all")
    yield Check("digest", f"{told.get('digest') or told.get('clean_digest')} (labels and some images)")
    if any(name.partition("/")[0] == "frost" for name in domains.domains):
        data = told.get("packed_from", told)
        textures = data.get("made_by", data).get("frost_textures", "those of the files")
        yield Check("frost textures", textures, "note" if textures == "generated" else "ok")
    opened.append(domains)
    if not has_label_maps(domains):
        yield from _classes(domains)
        yield from _label_map(domains)
    yield from _as_checks(data_notices(domains, job.config.dataset))
    try:
        source = domains.source_images()
        yield Check("source images", source.describe())
    except ValueError as error:
        yield Check("source images", str(error).partition(":")[0], "note")


def _as_checks(notices: Iterator[Notice]) -> Iterator[Check]:
    return (Check(about, told, "note") for about, told in notices)


def _classes(domains: DomainDataset) -> Iterator[Check]:
    """Images per class in each domain."""
    labels = {name: np.asarray(domains.labels(name)) for name in domains.domains}
    if not any((each >= 0).any() for each in labels.values()):
        return
    counts = {name: np.bincount(each[each >= 0]) for name, each in labels.items()}
    total = max(len(count) for count in counts.values())
    per_class = [int(n) for count in counts.values() for n in count[count > 0]]
    yield Check("classes", f"labels 0 to {total - 1}, {_range(per_class)} images per class and domain")


def _label_map(domains: DomainDataset) -> Iterator[Check]:
    """Which label the class folders were given."""
    if names := getattr(domains, "class_names", ()):
        yield Check("label map", label_pairs(names))


def _archives(job: Composed, domains: DomainDataset) -> Iterator[Check]:
    """Compare archives next to the data with the published checksums."""
    root = job.config.dataset.get("root")
    for folder in [] if root is None else [Path(root).expanduser(), Path(root).expanduser().parent]:
        for archive in (a for archives in PUBLIC.values() for a in archives):
            if (folder / f".{archive.name}.unpacked").exists():
                known = "its MD5 was checked" if archive.md5 else "it has no published checksum"
                yield Check("archives", f"{archive.name} was unpacked by tta-bench data download; {known}")
            elif archive.md5 and (file := folder / archive.name).is_file():
                same = md5_of(file) == archive.md5
                yield Check(
                    "archives", f"{file}: MD5 {'as published' if same else 'differs'}", "ok" if same else "problem"
                )


def _model(job: Composed, domains: DomainDataset, runs: list[Run]) -> Iterator[Check]:
    run = Run(job, Opened().keep(job.config.dataset, domains))
    backbone = run.backbone
    size = f"images of {backbone.image_size}" if backbone.image_size else "images of any size"
    parameters = f"{sum(p.numel() for p in backbone.parameters()) / 1e6:.1f} million parameters"
    yield Check("model", f"{type(backbone).__name__}, {parameters}, {backbone.num_classes} classes, {size}")
    origin = backbone.weights_origin or {}
    read = f", read from {origin['key']}" if origin.get("key") else ""
    yield Check("weights", f"SHA-256 {backbone.weights_sha256[:16]}...{read}")
    told = backbone.preprocess
    resized = f"resized to {told.resize[0]} and cut to {told.resize[1]}" if told.resize else "not resized"
    yield Check("preprocess", f"{told.profile}: mean {list(told.mean)}, std {list(told.std)}, {resized}")
    yield from _as_checks(model_notices(domains, backbone))
    runs.append(run)


def _sizes(run: Run) -> Iterator[Check]:
    """Decode a few images of each domain: they must have one size, which the model must accept."""
    sizes: dict[tuple[int, ...], str] = {}
    for name in run.domains.domains:
        count = len(run.domains.labels(name))
        for i in np.unique(np.linspace(0, count - 1, SAMPLED).astype(int)):
            sizes.setdefault(run.domains.load(name, int(i)).shape[:2], name)
    found = ", ".join(f"{height}x{width}" for height, width in sizes)
    if len(sizes) > 1:
        alone = has_label_maps(run.domains) and run.config.setting.batch_size == 1
        remedy = "setting.batch_size=1" if has_label_maps(run.domains) else "dataset.image_size"
        yield Check("image sizes", found, "ok") if alone else Check("image sizes", f"{found}: set {remedy}", "problem")
        return
    _prepared(run, [run.domains.load(run.domains.domains[0], 0)])  # raises if the model does not accept it
    (shape,) = sizes
    enlarged = run.backbone.image_size not in (None, shape[1]) and run.backbone.preprocess.resize is None
    yield Check("image sizes", f"{found}, enlarged to {run.backbone.image_size}" if enlarged else found)


def _prepared(run: Run, images: Sequence[np.ndarray]) -> torch.Tensor:
    return run.backbone.prepare(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2))


def _source_error(run: Run, images: int) -> Iterator[Check]:
    """The source model's error on images of each domain and on source images."""
    rng = np.random.default_rng(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run.backbone.to(device)
    groups: dict[str | None, tuple[np.ndarray, Callable[[int], np.ndarray]]] = {
        name: (np.asarray(run.domains.labels(name)), _loader(run.domains, name)) for name in run.domains.domains
    }
    try:
        clean: CleanImages = run.domains.source_images()
        groups[None] = (clean.labels, clean.__getitem__)
    except ValueError:
        pass
    counts: dict[str | None, Count] = {}
    for name, (labels, load) in groups.items():
        if not (labels >= 0).any():
            continue
        share = images // 3 if name is None else images // (len(groups) - (None in groups))
        rows = rng.permutation(np.flatnonzero(labels >= 0))[: max(1, share)]
        wrong = 0
        for part in np.split(rows, range(BATCH, len(rows), BATCH)):
            with torch.no_grad():
                batch = _prepared(run, [load(int(i)) for i in part]).to(device)
                wrong += int((run.backbone(batch).argmax(dim=1).cpu().numpy() != labels[part]).sum())
        counts[name] = Count(wrong, len(rows))
    if None in counts:
        yield _error("source error, clean", {"source": counts.pop(None)}, run, "problem")
    stream = {name: count for name, count in counts.items() if name is not None}
    if not stream:
        return
    yield _error("source error, stream", stream, run, "note" if len(stream) < len(groups) else "problem")
    if told := describe_protocol(run.domains.name, run.domains.describe(), stream):
        yield Check("protocol", told, "note" if "no known protocol" in told or "not ruled out" in told else "ok")


def _loader(domains: DomainDataset, name: str) -> Callable[[int], np.ndarray]:
    return lambda index: domains.load(name, index)


def _error(name: str, counts: dict[str, Count], run: Run, state: State) -> Check:
    mean, half = mean_error(counts)
    found = f"{mean:.1f} ± {half:.1f} % on {sum(count.images for count in counts.values())} images"
    told = error_notice(mean, run.domains, run.config.dataset, run.backbone)
    return Check(name, f"{found}, {told}", state) if told else Check(name, found)


def _method(job: Composed, domains: DomainDataset) -> Iterator[Check]:
    """Whether a method can run here, and its approximate memory use."""
    name = job.choices["method"]
    run = Run(job, Opened().keep(job.config.dataset, domains))
    check_source(run.method, domains)
    image = _prepared(run, [domains.load(domains.domains[0], 0)])
    batch_size = int(job.config.setting.get("batch_size", 1))
    needed = estimate_memory(run.method, image, batch_size)
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
    state: State = "note" if free is not None and needed.total > free else "ok"
    yield Check(f"memory, {name}", f"about {needed}, for a batch of {batch_size}", state)


def _disk(job: Composed) -> Iterator[Check]:
    for key in ("output", "cache_dir"):
        folder = Path(str(job.config[key])).expanduser()
        free = free_space(folder) / 1e9
        yield Check(f"disk, {key}", f"{folder}: {free:.1f} GB free", "ok" if free > 1 else "problem")


def _wandb(job: Composed) -> Iterator[Check]:
    """Never a problem, since the run folder contains everything without W&B."""
    settings = job.config.logger.get("wandb")
    if settings is None:
        yield Check("W&B", "not used")
        return
    mode = wandb_mode(settings.mode)
    if mode == "disabled":
        yield Check("W&B", "switched off by WANDB_MODE=disabled")
    elif mode != "online":
        yield Check("W&B", f"{mode}: runs stay in their folders until wandb sync uploads them")
    if mode != "online":
        return
    try:
        urllib.request.urlopen(server(), timeout=REACH).close()
        yield Check("W&B", f"{server()} answers")
    except urllib.error.HTTPError as error:  # an answer, too
        yield Check("W&B", f"{server()} answers ({error.code})")
    except OSError as error:
        yield Check("W&B", f"{server()} does not answer ({error}): use logger.wandb.mode=offline", "note")


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
