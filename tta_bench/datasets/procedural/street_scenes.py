"""streets_c's scenes: a street in perspective, drawn back to front, deterministically from (split, index)."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

CLASSES = ("road", "sidewalk", "building", "pole", "vegetation", "sky", "person", "car")
ROAD, SIDEWALK, BUILDING, POLE, VEGETATION, SKY, PERSON, CAR = range(len(CLASSES))
IGNORE = 255  # the hood of the car that carries the camera
SPLITS = ("train", "source", "validation", "test")
HEIGHT, WIDTH = 128, 256
FOCAL, CAMERA = 230.0, 1.5  # focal length in pixels, height of the camera in metres
FAR = 90.0  # metres; everything beyond is a row of trees and houses at the horizon


@dataclass
class Scene:
    """A street by day, with the depth and lights from which other weathers are rendered."""

    labels: np.ndarray  # (H, W) uint8
    horizon: float  # row
    image: np.ndarray  # (H, W, 3) float32, RGB in [0, 1]
    depth: np.ndarray  # (H, W) float32, metres; infinite in the sky
    lights: np.ndarray  # (H, W, 3) float32, light sources at night


def render_scene(split: str, index: int) -> Scene:
    """Render one street.

    Args:
        split: One of ``SPLITS``; the splits share no random numbers.
        index: Scene number, >= 0.
    """
    painter = _Painter(np.random.default_rng([SPLITS.index(split), index]))
    painter.sky()
    painter.ground()
    for side in (-1, 1):
        painter.facades(side)
    painter.things()
    painter.hood()
    return painter.finished()


class _Painter:
    """Draws into a scene; X is metres right of the camera, Y metres above the ground, Z metres ahead."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        shape = (HEIGHT, WIDTH)
        self.horizon, self.center = rng.uniform(48, 62), rng.uniform(108, 148)
        self.rows, self.columns = (axis + 0.5 for axis in np.mgrid[:HEIGHT, :WIDTH].astype(float))
        self.image, self.lights = np.zeros((*shape, 3)), np.zeros((*shape, 3))
        self.labels, self.depth = np.full(shape, SKY, dtype=np.uint8), np.full(shape, np.inf)
        self.road, self.pavement = rng.uniform(3.2, 5.0), rng.uniform(1.8, 3.2)  # half width, width in metres
        self.sun, self.warmth = rng.uniform(0.75, 1.1), rng.uniform(-0.04, 0.06)

    def noise(self, cell: int) -> np.ndarray:
        """Smooth noise (H, W) of unit variance, with blobs of about ``cell`` pixels."""
        coarse = self.rng.normal(0, 1, (HEIGHT // cell + 2, WIDTH // cell + 2)).astype(np.float32)
        return cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)

    def paint(self, mask: np.ndarray, color: np.ndarray, kind: int, depth: np.ndarray | float) -> None:
        """Cover the masked pixels with a colour (3,) or (H, W, 3), at a depth in metres."""
        self.image[mask] = color if color.ndim == 1 else color[mask]
        self.labels[mask] = kind
        self.depth[mask] = np.broadcast_to(depth, mask.shape)[mask]
        self.lights[mask] = 0

    def column(self, x: float, z: float) -> float:
        """Image column of a point X metres to the right, Z ahead."""
        return self.center + FOCAL * x / z

    def row(self, y: float, z: float) -> float:
        """Image row of a point Y metres above the ground, Z ahead."""
        return self.horizon + FOCAL * (CAMERA - y) / z

    def box(self, x: float, z: float, low: float, high: float, half: float) -> np.ndarray:
        """Mask of an upright rectangle: from ``low`` to ``high`` metres above the ground, ``half`` to each side."""
        inside = np.abs(self.columns - self.column(x, z)) <= max(FOCAL * half / z, 0.5)
        return inside & (self.rows <= self.row(low, z)) & (self.rows >= self.row(high, z))

    def ellipse(self, x: float, y: float, z: float, half_width: float, half_height: float) -> np.ndarray:
        """Mask of an ellipse around (X, Y, Z), in metres."""
        u = (self.columns - self.column(x, z)) / (FOCAL * half_width / z)
        v = (self.rows - self.row(y, z)) / (FOCAL * half_height / z)
        return np.asarray(u**2 + v**2 <= 1)

    def sky(self) -> None:
        """A gradient with clouds, and a dim row of trees and houses at the end of the street."""
        height = (self.horizon - self.rows).clip(0, None)[..., None] / self.horizon
        blue, pale = np.array([0.35, 0.55, 0.88]), np.array([0.80, 0.86, 0.92])
        clouds = (self.noise(24) + 0.5 * self.noise(8) - self.rng.uniform(-2.0, 1.4)).clip(0, 1)[..., None]
        self.image[:] = (pale + (blue - pale) * height) * (1 - 0.8 * clouds) + 0.8 * clouds * 0.86
        skyline = self.horizon - 3 - 2.5 * (1 + self.noise(12)[:1])
        kind = self.rng.choice([BUILDING, VEGETATION])
        color = np.array([0.50, 0.50, 0.52] if kind == BUILDING else [0.33, 0.42, 0.33])
        self.paint((self.rows > skyline) & (self.rows <= self.row(0, FAR)), color, int(kind), FAR)

    def ground(self) -> None:
        """Road with markings, kerb and pavement."""
        depth = np.where(
            self.rows > self.horizon + 1, FOCAL * CAMERA / (self.rows - self.horizon).clip(1, None), np.inf
        )
        below = depth < FAR
        x = np.where(below, (self.columns - self.center) * depth.clip(0, FAR) / FOCAL, 0)
        grain = (0.02 * self.noise(2) + 0.02 * self.noise(16))[..., None]
        slabs = 0.05 * ((np.floor(depth.clip(0, FAR) / 1.2) + np.floor(x / 1.2)) % 2)[..., None]
        paving = self.rng.uniform(0.50, 0.66) * np.array([1.0, 0.96, 0.90])
        self.paint(below, paving + slabs + grain, SIDEWALK, depth)
        asphalt = self.rng.uniform(0.24, 0.38) * np.array([1.0, 1.0, 1.04])
        self.paint(below & (np.abs(x) < self.road), asphalt + grain, ROAD, depth)
        dashed = (np.abs(x) < 0.09) & (depth.clip(0, FAR) % 6 < self.rng.uniform(2.5, 6.0))
        edge = np.abs(np.abs(x) - self.road + 0.35) < 0.07
        self.image[below & (dashed | (edge & (self.rng.random() < 0.6)))] = 0.82
        self.image[below & (np.abs(np.abs(x) - self.road) < 0.12)] = 0.60  # kerb

    def facades(self, side: int) -> None:
        """Houses, hedges and gaps along one side of the street, on a plane that runs into the distance."""
        distance = side * (self.columns - self.center)
        wall = self.road + self.pavement
        depth = np.where(distance > 1, FOCAL * wall / distance.clip(1, None), np.inf)
        y = CAMERA - (self.rows - self.horizon) * depth.clip(0, FAR) / FOCAL
        start = 0.0
        while start < FAR:
            length = self.rng.uniform(6, 18)
            here = (depth >= start) & (depth < min(start + length, FAR)) & (y >= 0)
            kind = self.rng.choice(["house", "hedge", "gap"], p=[0.72, 0.2, 0.08])
            if kind == "house":
                self._house(here, y, depth, start, length)
            elif kind == "hedge":
                top = self.rng.uniform(1.2, 4.5) + 0.4 * self.noise(6)
                self.paint(here & (y < top), self._leaves(), VEGETATION, depth)
            start += length

    def _house(self, here: np.ndarray, y: np.ndarray, depth: np.ndarray, start: float, length: float) -> None:
        height, storey, bay = self.rng.uniform(6, 17), self.rng.uniform(2.8, 3.6), self.rng.uniform(2.0, 3.2)
        hue = np.array([[0.72, 0.62, 0.52], [0.60, 0.42, 0.36], [0.62, 0.62, 0.62], [0.78, 0.74, 0.64]])
        plaster = hue[self.rng.integers(4)] * self.rng.uniform(0.7, 1.1) + self.rng.normal(0, 0.03, 3)
        glass = np.array([0.22, 0.27, 0.33]) * self.rng.uniform(0.6, 1.3)
        lit = self.rng.random((32, 32)) < 0.35
        wall = here & (y < height)
        self.paint(wall, plaster + 0.02 * self.noise(4)[..., None], BUILDING, depth)
        rows, columns = np.nonzero(wall)
        u, v = (depth[rows, columns] - start) / bay, y[rows, columns] / storey
        pane = (u % 1 > 0.28) & (u % 1 < 0.72) & (v % 1 > 0.25) & (v % 1 < 0.75)
        pane &= (u < np.floor(length / bay)) & (v < (height - 0.4) / storey)
        rows, columns, u, v = rows[pane], columns[pane], u[pane], v[pane]
        self.image[rows, columns] = glass
        self.lights[rows, columns] = lit[u.astype(int), v.astype(int)][:, None] * np.array([0.80, 0.62, 0.30])
        self.image[wall & (y >= height - 0.35)] *= 0.6  # eaves

    def _leaves(self) -> np.ndarray:
        green = np.array([0.22, 0.36, 0.16]) * self.rng.uniform(0.7, 1.4) + self.rng.uniform(0, 0.12) * np.array(
            [1, 0.5, 0]
        )
        return np.asarray(green * (1 + 0.25 * self.noise(3) + 0.15 * self.noise(8))[..., None])

    def things(self) -> None:
        """Trees, poles, people and cars, the far ones first."""
        rng, placed = self.rng, []
        edge = self.road + 0.5
        for draw, count, span in ((self._tree, 4, 60), (self._pole, 4, 45), (self._person, 5, 28), (self._car, 5, 45)):
            for _ in range(rng.integers(1, count + 1)):
                z = rng.uniform(7, span)
                side = rng.choice([-1, 1])
                if draw == self._car:
                    x = side * rng.choice([self.road / 2, self.road - 1.0])
                elif draw == self._person and rng.random() < 0.3:
                    x = rng.uniform(-self.road, self.road)
                else:
                    x = side * (edge + rng.uniform(0, self.pavement - 0.8) * (draw != self._pole))
                placed.append((z, float(x), draw))
        for z, x, draw in sorted(placed, key=lambda thing: -thing[0]):
            draw(x, z)

    def _tree(self, x: float, z: float) -> None:
        rng, radius, height = self.rng, self.rng.uniform(1.2, 2.2), self.rng.uniform(3.2, 5.0)
        self.paint(self.box(x, z, 0, height, 0.18), np.array([0.30, 0.23, 0.17]), VEGETATION, z)
        crown = np.zeros((HEIGHT, WIDTH), dtype=bool)
        for _ in range(6):
            dx, dy = rng.normal(0, 0.45 * radius, 2)
            crown |= self.ellipse(x + dx, height + dy, z, 0.7 * radius, 0.6 * radius)
        self.paint(crown, self._leaves(), VEGETATION, z)

    def _pole(self, x: float, z: float) -> None:
        rng, grey = self.rng, self.rng.uniform(0.25, 0.6)
        height = rng.uniform(3.0, 7.0)
        self.paint(self.box(x, z, 0, height, 0.09), np.array([grey] * 3), POLE, z)
        if height < 4.5:
            colors = np.array([[0.80, 0.12, 0.12], [0.10, 0.25, 0.70], [0.90, 0.75, 0.10], [0.85, 0.85, 0.85]])
            self.paint(self.ellipse(x, height - 0.2, z, 0.38, 0.38), colors[rng.integers(4)], POLE, z)
        else:
            self.paint(self.box(x - np.sign(x) * 0.7, z, height - 0.25, height, 0.75), np.array([grey] * 3), POLE, z)
            self.lights[self.ellipse(x - np.sign(x) * 1.2, height - 0.1, z, 0.4, 0.3)] = np.array([1.6, 1.3, 0.8])

    def _person(self, x: float, z: float) -> None:
        rng, height = self.rng, self.rng.uniform(1.5, 1.9)
        coat, trousers = rng.uniform(0.05, 0.85, 3), rng.uniform(0.05, 0.4, 3)
        self.paint(self.box(x - 0.1, z, 0, 0.48 * height, 0.10), trousers, PERSON, z)
        self.paint(self.box(x + 0.12, z, 0, 0.48 * height, 0.10), trousers * 0.8, PERSON, z)
        self.paint(self.ellipse(x, 0.65 * height, z, 0.27, 0.22 * height), coat, PERSON, z)
        skin = np.array([0.80, 0.62, 0.50]) * rng.uniform(0.5, 1.1)
        self.paint(self.ellipse(x, 0.92 * height, z, 0.13, 0.15), skin, PERSON, z)

    def _car(self, x: float, z: float) -> None:
        rng = self.rng
        height, half = rng.uniform(1.35, 1.9), rng.uniform(0.82, 0.98)
        lacquer = np.array([rng.uniform(0.08, 0.9)] * 3) if rng.random() < 0.5 else rng.uniform(0.05, 0.8, 3)
        self.image[self.ellipse(x, 0.0, z, half * 1.15, 0.16) & (self.labels == ROAD)] *= 0.45  # its shadow
        for wheel in (x - 0.72 * half, x + 0.72 * half):
            self.paint(self.box(wheel, z, 0, 0.5, 0.13), np.array([0.06] * 3), CAR, z)
        self.paint(self.ellipse(x, 0.62 * height, z, 0.80 * half, 0.38 * height), lacquer * 0.9, CAR, z)
        self.paint(self.box(x, z, 0.25, 0.60 * height, half), lacquer, CAR, z)
        self.paint(self.ellipse(x, 0.70 * height, z, 0.64 * half, 0.22 * height), np.array([0.13, 0.16, 0.20]), CAR, z)
        ahead = x > 0  # traffic keeps right: cars on the right drive away and show red lights
        for lamp in (x - 0.8 * half, x + 0.8 * half):
            mask = self.ellipse(lamp, 0.48 * height, z, 0.15, 0.10)
            self.image[mask] = np.array([0.75, 0.10, 0.08]) if ahead else np.array([0.90, 0.90, 0.85])
            self.lights[mask] = np.array([1.3, 0.12, 0.08]) if ahead else np.array([1.8, 1.7, 1.4])

    def hood(self) -> None:
        """The hood of the car that carries the camera, at the lower edge; not a class."""
        u = (self.columns - self.center) / 110
        mask = self.rows > HEIGHT - 7 + 6 * u**2
        self.paint(mask, np.array([0.16, 0.17, 0.19]) + 0.05 * self.noise(32)[..., None], IGNORE, 1.0)

    def finished(self) -> Scene:
        """Apply sunlight and a slightly blurred lens."""
        tint = self.sun * np.array([1 + self.warmth, 1.0, 1 - self.warmth])
        image = cv2.GaussianBlur((self.image * tint).clip(0, 1), (3, 3), 0.6)
        floats = (part.astype(np.float32) for part in (image, self.depth, self.lights))
        return Scene(self.labels, self.horizon, *floats)
