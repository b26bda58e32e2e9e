"""Test-time adaptation methods: one paper, one file. A new method is one file and one line here."""

from tta_bench.methods.base import TTAMethod
from tta_bench.methods.bdg import BDG
from tta_bench.methods.bn_adapt import BNAdapt
from tta_bench.methods.cmae import CMAE
from tta_bench.methods.cmf import CMF
from tta_bench.methods.cotta import CoTTA
from tta_bench.methods.dept import DePT
from tta_bench.methods.deyo import DeYO
from tta_bench.methods.dpcore import DPCore
from tta_bench.methods.dpcore_b import DPCoreB
from tta_bench.methods.dpcore_simplified import DPCoreSimplified
from tta_bench.methods.eata import EATA, ETA
from tta_bench.methods.ecotta import EcoTTA
from tta_bench.methods.foa import FOA
from tta_bench.methods.lame import LAME
from tta_bench.methods.memo import MEMO
from tta_bench.methods.note_pbrs import NOTEPBRS
from tta_bench.methods.petta import PeTTA
from tta_bench.methods.pseudo_label import PseudoLabel, PseudoLabelLAME
from tta_bench.methods.rdumb import RDumb
from tta_bench.methods.roid import ROID
from tta_bench.methods.rotta import RoTTA
from tta_bench.methods.rpl import RPL
from tta_bench.methods.santa import SANTA
from tta_bench.methods.sar import SAR
from tta_bench.methods.source import Source
from tta_bench.methods.tent import Tent
from tta_bench.methods.vdp import VDP
from tta_bench.methods.vida import ViDA

METHODS: dict[str, type[TTAMethod]] = {
    "source": Source,
    "tent": Tent,
    "dpcore": DPCore,
    "dpcore_b": DPCoreB,
    "dpcore_simplified": DPCoreSimplified,
    "bdg": BDG,
    "bn_adapt": BNAdapt,
    "cmae": CMAE,
    "cmf": CMF,
    "cotta": CoTTA,
    "dept": DePT,
    "deyo": DeYO,
    "eata": EATA,
    "ecotta": EcoTTA,
    "eta": ETA,
    "foa": FOA,
    "lame": LAME,
    "memo": MEMO,
    "note_pbrs": NOTEPBRS,
    "petta": PeTTA,
    "pseudo_label": PseudoLabel,
    "pseudo_label_lame": PseudoLabelLAME,
    "rdumb": RDumb,
    "roid": ROID,
    "rotta": RoTTA,
    "rpl": RPL,
    "santa": SANTA,
    "sar": SAR,
    "vdp": VDP,
    "vida": ViDA,
}

__all__ = [
    "BDG",
    "CMAE",
    "CMF",
    "EATA",
    "ETA",
    "FOA",
    "LAME",
    "MEMO",
    "METHODS",
    "NOTEPBRS",
    "ROID",
    "RPL",
    "SANTA",
    "SAR",
    "VDP",
    "BNAdapt",
    "CoTTA",
    "DPCore",
    "DPCoreB",
    "DPCoreSimplified",
    "DePT",
    "DeYO",
    "EcoTTA",
    "PeTTA",
    "PseudoLabel",
    "PseudoLabelLAME",
    "RDumb",
    "RoTTA",
    "Source",
    "TTAMethod",
    "Tent",
    "ViDA",
]
