"""Weights & Biases: a saved view of a project's runs of one protocol, with the seeds of an entry as one curve."""

from __future__ import annotations

import importlib.util
from typing import Any

STEP = "stream/step"


def tell_view(run: Any, protocol: str, curve: str) -> str:
    """Say where the curves are: in the view of an earlier comparison, in a new view, or how to create one.

    Args:
        run: The online run of the comparison; its summary stores the view.
        protocol: Value of ``protocol`` in the configuration of the view's runs.
        curve: The metric that is drawn first, such as ``running_error``.
    """
    view, reason = run.summary.get("view"), "pip install wandb-workspaces to have this view saved"
    if not view and importlib.util.find_spec("wandb_workspaces") is not None:
        try:
            view = make_view(run.entity, run.project, run.name, protocol, curve)
        except Exception as error:  # the package and the service keep changing
            reason = f"the view could not be saved: {error}"
    if view:
        run.summary.update({"view": view})
        return f"curves with the seeds of an entry as one: {view}"
    project = run.url.partition("/runs/")[0]
    return f"for curves, filter the runs of {project} by protocol = {protocol} and group them by entry ({reason})"


def make_view(entity: str, project: str, name: str, protocol: str, curve: str) -> str:
    """Save a new view.

    Args:
        entity: Owner of the project.
        project: The project.
        name: Name of the view.
        protocol: As in :func:`tell_view`.
        curve: As in :func:`tell_view`.

    Raises:
        wandb.Error: If W&B fails.
    """
    import wandb_workspaces.reports.v2 as parts
    import wandb_workspaces.workspaces as views

    lines = [f"stream/{curve}", "stream/error", "method/coreset_size", "stream/top_class_share"]
    bars = [curve.replace("running", "mean"), "forward_per_sample", "backward_per_sample"]
    panels = [
        *(parts.LinePlot(x=STEP, y=[metric], title=metric) for metric in lines),
        *(parts.BarPlot(metrics=[metric], title=metric) for metric in bars),
    ]
    view = views.Workspace(
        entity=entity,
        project=project,
        name=f"{name} {protocol}",
        sections=[views.Section(name="Curves over the stream, and cost", panels=panels, is_open=True)],
        settings=views.WorkspaceSettings(x_axis=STEP, max_runs=100),
        runset_settings=views.RunsetSettings(
            filters=f"Config('protocol') = '{protocol}'", groupby=[views.Config("entry")]
        ),
    )
    view.save()
    return str(view.url)
