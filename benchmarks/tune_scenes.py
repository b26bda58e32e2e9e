"""Tune every method for scenes_c on the validation corruptions, ten runs each: ``python -m benchmarks.tune_scenes``.

The published values are always one of the ten. Finished runs are not repeated, so the command resumes where it was
stopped. The best values are written to ``configs/tuned/scenes_c``; ``--only tent sar`` tunes some methods.
"""

from __future__ import annotations

import argparse

from rich.console import Console

from tta_bench.config.words import read_words
from tta_bench.experiments.tune import make_tuning, tune, tuning_table, write_tuned

LR = "lr=[1e-4,1e-2,3e-2,1e-1,3e-1]"  # a small model and few batches need higher rates than ViT-B on ImageNet-C
# Ten points, the published values among them.
GRIDS = {
    "tent": "lr=[1e-4,1e-3,1e-2,3e-2,1e-1],optimizer=[sgd,adam]",
    "sar": "lr=[1e-3,1e-2,3e-2,1e-1,3e-1],entropy_margin=[0.4,0.8]",
    "eata": "lr=[1e-3,1e-2,3e-2,1e-1,3e-1],fisher_weight=[2000.0,1.0]",
    "roid": "lr=[2.5e-4,3e-3,1e-2,3e-2,1e-1],source_momentum=[0.99,0.9]",
    "cotta": f"{LR},restore_probability=[0.001,0.01]",
    "eta": "lr=[1e-3,1e-2,3e-2,1e-1,3e-1],cosine_margin=[0.05,0.4]",
    "rdumb": "lr=[2.5e-4,1e-2,3e-2,1e-1,3e-1],reset_every=[1000,8]",
    "deyo": "lr=[1e-3,1e-2,3e-2,1e-1,3e-1],entropy_margin=[0.5,0.8]",
    "rpl": "lr=[5e-4,3e-3,1e-2,3e-2,1e-1],q=[0.8,0.5]",
    "pseudo_label": f"{LR},threshold=[0.0,0.9]",
    "pseudo_label_lame": "lr=[1e-3,1e-2,3e-2,1e-1,3e-1],threshold=[0.9,0.5]",
    "lame": "neighbors=[1,3,5,10,20],symmetric=[true,false]",
    "cmf": "lr=[2.5e-4,3e-3,1e-2,3e-2,1e-1],source_momentum=[0.99,0.9]",
    "rotta": "lr=[1e-3,1e-4,3e-3,1e-2,3e-2],teacher_momentum=[0.999,0.9]",
    "bdg": f"{LR},teacher_momentum=[0.999,0.9]",
    "petta": "lr=[1e-3,1e-4,3e-3,1e-2,3e-2],alpha0=[0.001,0.1]",
    "santa": "lr=[1e-3,3e-3,1e-2,3e-2,1e-1],contrast_weight=[1.0,0.1]",
    "vida": "lr=[5e-7,1e-3,1e-2,3e-2,1e-1],adapter_lr=[2e-7,1e-2]",
    "vdp": "lr_specific=[1e-3,1e-2,1e-1,1.0,10.0],lr_agnostic=[1e-4,1e-2]",
    "ecotta": "lr=[1e-3,1e-4,1e-2,3e-2,1e-1],regularization=[0.5,0.1]",
    "dept": "lr=[1e-3,1e-4,1e-2,3e-2,1e-1],feature_weight=[0.1,1.0]",
    "dpcore_exp3": "lr=[0.001,0.003,0.01,0.03,0.1],rho=[0.8,0.95]",
    "dpcore": "lr=[0.003,0.01,0.03,0.1,0.3],rho=[0.8,0.95]",
    "dpcore_b": "lr=[0.003,0.01,0.03,0.1,0.3],rho=[0.8,0.95]",
    "dpcore_simplified": "lr=[0.01,0.03,0.1,0.3,1.0],theta=[5.0,10.0]",
    "cmae": "lr=[1e-6,1e-4,1e-3,1e-2,3e-2],lr_reconstruction=[1e-4,1e-3]",
    "foa": "fitness_weight=[0.1,0.2,0.4,1.0,2.0],step_size=[1.0,0.3]",
    "memo": "lr=[1e-5,1e-4,3e-4,1e-3,3e-3],weight_decay=[0.01,0.0]",
}
# Values that the table needs to end in minutes: short warm-ups, few views.
SHORT = {
    "dept": ["method.warmup_steps=100", "method.head_width=256"],
    "ecotta": ["method.warmup_steps=200"],
    "memo": ["method.num_views=8"],
    "vdp": ["method.warmup_steps=200"],
    "vida": ["method.warmup_steps=200"],
}


def main() -> None:
    """Tune the methods one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(GRIDS), choices=list(GRIDS), help="the methods to tune")
    parser.add_argument("--images", type=int, default=512, help="images of each of the four corruptions")
    parser.add_argument("words", nargs="*", help="further overrides, e.g. output=runs/tuning")
    arguments = parser.parse_args()
    console = Console()
    for name in arguments.only:
        words = [
            f"method={name}",
            "dataset=scenes_c",
            f"dataset.num_images={arguments.images}",
            "setting=csc",
            "logger=off",
            "config_dir=configs",
            *SHORT.get(name, []),
            *arguments.words,
        ]
        done = tune(make_tuning(read_words(words), [GRIDS[name]]), console)
        if done is not None:
            console.print(tuning_table(done))
            console.print(write_tuned(done))


if __name__ == "__main__":
    main()
