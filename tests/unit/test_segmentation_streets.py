"""The procedural streets of streets_c and their weathers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tta_bench.domains.street_scenes import CLASSES, IGNORE, SPLITS, render_scene
from tta_bench.domains.street_weather import WEATHER
from tta_bench.domains.streets import StreetScenes, _scene, streets_c

ROAD, SIDEWALK, BUILDING, POLE, VEGETATION, SKY, PERSON, CAR = range(8)
