"""The playhouse's pictures: things, colours and backdrops as vector shapes, and the composition of frames.

Each picture is drawn once, at a large size, and cached. A frame is a copy of its backdrop with a few small pictures
pasted onto it. This is fast: a hundred thousand training frames take minutes.

Stage coordinates: the centre is (0, 0) and the height is 1. x grows to the right, y grows downwards. The stage has the
aspect ratio 4:3. Each thing is drawn in a box of side 1 around the origin, and looks to the right.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

RGB = tuple[int, int, int]
Number = float | int  # so that shapes may be written with 0 instead of 0.0
Point = tuple[Number, Number]

STAGE_WIDTH = 4 / 3

COLOURS: dict[str, RGB] = {
    "red": (222, 38, 42),
    "orange": (255, 138, 18),
    "yellow": (255, 218, 40),
    "green": (52, 172, 72),
    "blue": (38, 98, 224),
    "purple": (138, 62, 190),
    "pink": (255, 132, 190),
    "white": (250, 250, 250),
    "black": (44, 44, 52),
}

INK = (38, 36, 46)
PAPER = (255, 255, 255)
CREAM = (255, 244, 214)
WOOD = (134, 88, 52)
GLASS = (176, 222, 246)
STEEL = (168, 174, 184)
LEAF = (78, 150, 66)
SKIN = (232, 200, 152)
GLOW = (255, 224, 96)
FLAME = (255, 150, 30)

# Pixels. A thing is drawn at the first size, and reduced to the second, which exceeds its size in common frames.
DRAWN = 576
LARGEST = 192


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A thing on the stage: its centre, the side of its box, and its rotation (radians, clockwise)."""

    thing: str
    colour: str
    x: float
    y: float
    size: float
    angle: float = 0.0
    flipped: bool = False


# ---------------------------------------------------------------- drawing


class Pen:
    """Draw shapes in coordinates around the centre of an image.

    The height of the image is 1, not counting a `margin` above and below, which is a share of the height.
    """

    def __init__(self, image: Image.Image, margin: float = 0.0) -> None:
        self._draw = ImageDraw.Draw(image)
        self._unit = image.height * (1 - 2 * margin)
        self._origin = (image.width / 2, image.height / 2)

    def _at(self, x: Number, y: Number) -> Point:
        return self._origin[0] + x * self._unit, self._origin[1] + y * self._unit

    def ellipse(self, x: Number, y: Number, rx: Number, ry: Number, fill: RGB, turn: Number = 0.0) -> None:
        """Draw an ellipse.

        Args:
            x: The x of the centre.
            y: The y of the centre.
            rx: The horizontal radius.
            ry: The vertical radius.
            fill: The colour.
            turn: The clockwise rotation in radians.
        """
        if turn == 0.0:
            self._draw.ellipse([self._at(x - rx, y - ry), self._at(x + rx, y + ry)], fill=fill)
        else:
            self.polygon(ring(x, y, rx, ry, 48, turn), fill)

    def circle(self, x: Number, y: Number, r: Number, fill: RGB) -> None:
        """Draw a circle.

        Args:
            x: The x of the centre.
            y: The y of the centre.
            r: The radius.
            fill: The colour.
        """
        self.ellipse(x, y, r, r, fill)

    def polygon(self, points: Iterable[Point], fill: RGB) -> None:
        """Draw a filled polygon."""
        self._draw.polygon([self._at(x, y) for x, y in points], fill=fill)

    def box(self, left: Number, top: Number, right: Number, bottom: Number, fill: RGB, radius: Number = 0.0) -> None:
        """Draw a rectangle.

        Args:
            left: The x of the left side.
            top: The y of the top side.
            right: The x of the right side.
            bottom: The y of the bottom side.
            fill: The colour.
            radius: The radius of the corners.
        """
        corners = [self._at(left, top), self._at(right, bottom)]
        self._draw.rounded_rectangle(corners, radius * self._unit, fill=fill)

    def slice(self, x: Number, y: Number, r: Number, start: Number, end: Number, fill: RGB) -> None:
        """Draw a sector of a circle.

        Args:
            x: The x of the centre.
            y: The y of the centre.
            r: The radius.
            start: The first angle, in degrees clockwise from the right.
            end: The last angle, in degrees clockwise from the right.
            fill: The colour.
        """
        self._draw.pieslice([self._at(x - r, y - r), self._at(x + r, y + r)], start, end, fill=fill)

    def line(self, points: Sequence[Point], width: Number, fill: RGB) -> None:
        """Draw a line with round ends through the points.

        Args:
            points: At least two points.
            width: The width of the line.
            fill: The colour.
        """
        self._draw.line([self._at(x, y) for x, y in points], fill=fill, width=round(width * self._unit), joint="curve")
        for x, y in (points[0], points[-1]):
            self.circle(x, y, width / 2, fill)

    def eye(self, x: Number, y: Number, r: Number) -> None:
        """Draw an eye that looks to the right.

        Args:
            x: The x of the centre.
            y: The y of the centre.
            r: The radius of the eye.
        """
        self.circle(x, y, r, PAPER)
        self.circle(x + r * 0.2, y, r * 0.62, INK)

    def face(self, x: Number, y: Number, size: Number) -> None:
        """Draw two eyes and a smile. They show which way is up when the thing turns.

        Args:
            x: The x of the centre.
            y: The y of the centre.
            size: The size of the face, which all parts scale with.
        """
        for side in (-1, 1):
            self.eye(x + side * size * 0.36, y - size * 0.1, size * 0.2)
        smile = [(size * 0.3 * math.sin(a), size * (0.1 + 0.26 * math.cos(a))) for a in _steps(-1.1, 1.1, 12)]
        self.line([(x + u, y + v) for u, v in smile], size * 0.09, INK)


def _steps(start: Number, end: Number, count: int) -> list[float]:
    """Return evenly spaced numbers from `start` to `end`, both included."""
    return [start + (end - start) * k / (count - 1) for k in range(count)]


def ring(x: Number, y: Number, rx: Number, ry: Number, count: int, turn: Number = 0.0) -> list[Point]:
    """Return points of an ellipse, clockwise from its right end.

    Args:
        x: The x of the centre.
        y: The y of the centre.
        rx: The horizontal radius.
        ry: The vertical radius.
        count: The number of points.
        turn: The clockwise rotation in radians.
    """
    cos, sin = math.cos(turn), math.sin(turn)
    flat = [(rx * math.cos(a), ry * math.sin(a)) for a in _steps(0, 2 * math.pi, count + 1)[:-1]]
    return [(x + cos * u - sin * v, y + sin * u + cos * v) for u, v in flat]


def mix(colour: RGB, other: RGB, share: Number) -> RGB:
    """Return a mixture of two colours.

    Args:
        colour: The first colour.
        other: The second colour.
        share: The part of the second colour, from 0 to 1.
    """
    r, g, b = (round(c + (o - c) * share) for c, o in zip(colour, other, strict=True))
    return r, g, b


@dataclass(frozen=True)
class Paint:
    """The colour of a thing, with a darker shade and a lighter tint."""

    main: RGB
    shade: RGB
    tint: RGB

    @classmethod
    def of(cls, name: str) -> "Paint":
        """Return the paint for a colour in COLOURS."""
        main = COLOURS[name]
        if name == "black":  # a darker shade would not be visible
            return cls(main, mix(main, PAPER, 0.28), mix(main, PAPER, 0.5))
        return cls(main, mix(main, INK, 0.3), mix(main, PAPER, 0.55) if name != "white" else (206, 212, 222))


# ---------------------------------------------------------------- things


def _ball(pen: Pen, paint: Paint) -> None:
    pen.circle(0, 0, 0.44, paint.main)
    for start in (20, 140, 260):
        pen.slice(0, 0, 0.44, start, start + 44, CREAM if paint.main != COLOURS["white"] else paint.tint)
    pen.circle(0, 0, 0.1, paint.shade)


def _boat(pen: Pen, paint: Paint) -> None:
    pen.box(-0.025, -0.46, 0.025, 0.2, WOOD)
    pen.polygon([(0.05, -0.42), (0.05, 0.12), (0.42, 0.12)], paint.main)
    pen.polygon([(-0.05, -0.34), (-0.05, 0.12), (-0.36, 0.12)], paint.tint)
    pen.polygon([(-0.47, 0.17), (0.47, 0.17), (0.3, 0.42), (-0.3, 0.42)], paint.main)
    pen.polygon([(-0.47, 0.17), (0.47, 0.17), (0.44, 0.22), (-0.44, 0.22)], paint.shade)


def _house(pen: Pen, paint: Paint) -> None:
    pen.box(0.18, -0.44, 0.3, -0.1, paint.shade)
    pen.box(-0.38, -0.1, 0.38, 0.45, paint.main)
    pen.polygon([(-0.48, -0.06), (0, -0.47), (0.48, -0.06)], paint.shade)
    pen.box(-0.09, 0.14, 0.1, 0.45, WOOD)
    pen.circle(0.06, 0.3, 0.018, GLOW)
    for x in (-0.24, 0.25):
        pen.box(x - 0.1, 0.02, x + 0.1, 0.22, CREAM)
        pen.box(x - 0.08, 0.04, x + 0.08, 0.2, GLASS)


def _fish(pen: Pen, paint: Paint) -> None:
    pen.polygon([(-0.2, 0), (-0.48, -0.27), (-0.42, 0), (-0.48, 0.27)], paint.shade)
    pen.polygon([(-0.12, -0.2), (0.02, -0.4), (0.18, -0.2)], paint.shade)
    pen.ellipse(0.1, 0, 0.37, 0.27, paint.main)
    for x in (-0.1, 0.04):
        pen.line([(x + 0.07 * math.cos(a), 0.13 * math.sin(a)) for a in _steps(-1.2, 1.2, 12)], 0.03, paint.tint)
    pen.polygon([(-0.02, 0.06), (0.14, 0.04), (0, 0.2)], paint.shade)
    pen.eye(0.28, -0.07, 0.065)


def _rocket(pen: Pen, paint: Paint) -> None:
    pen.polygon([(-0.12, 0.24), (0, 0.5), (0.12, 0.24)], FLAME)
    pen.polygon([(-0.06, 0.24), (0, 0.4), (0.06, 0.24)], GLOW)
    for side in (-1, 1):
        pen.polygon([(side * 0.14, 0.0), (side * 0.36, 0.34), (side * 0.14, 0.26)], paint.shade)
    hull = [(0.21 * math.cos(a), 0.1 - 0.5 * math.sin(a)) for a in _steps(1.2, -0.35, 20)]
    pen.polygon([(0, -0.49), *hull, *[(-x, y) for x, y in reversed(hull)]], paint.main)
    pen.box(-0.18, 0.2, 0.18, 0.27, paint.shade)
    pen.circle(0, -0.06, 0.115, CREAM)
    pen.circle(0, -0.06, 0.085, GLASS)


def _kite(pen: Pen, paint: Paint) -> None:
    tail = [(0.0 - 0.34 * s - 0.05 * math.sin(s * 7), 0.2 + 0.24 * s) for s in _steps(0, 1, 30)]
    pen.line(tail, 0.025, INK)
    for x, y in (tail[12], tail[27]):
        for side in (-1, 1):
            pen.polygon([(x, y), (x + side * 0.05, y - 0.1), (x + side * 0.11, y + 0.05)], paint.main)
    top, right, bottom, left, middle = (0.33, -0.48), (0.48, 0.02), (0.0, 0.22), (-0.3, -0.32), (0.17, -0.17)
    pen.polygon([top, right, bottom, left], paint.main)
    pen.polygon([top, right, middle], paint.tint)
    pen.polygon([left, bottom, middle], paint.shade)
    pen.line([top, bottom], 0.02, INK)
    pen.line([left, right], 0.02, INK)


def _tree(pen: Pen, paint: Paint) -> None:
    pen.polygon([(-0.06, 0.1), (0.06, 0.1), (0.1, 0.47), (-0.1, 0.47)], WOOD)
    for x, y, r in ((-0.2, 0.0, 0.2), (0.2, 0.0, 0.2), (0, -0.2, 0.27), (-0.14, -0.16, 0.2), (0.15, -0.14, 0.2),
                    (0, 0.04, 0.2)):  # fmt: skip
        pen.circle(x, y, r, paint.main)
    for x, y, r in ((-0.2, 0.04, 0.13), (0.22, 0.06, 0.1), (0.04, -0.02, 0.1)):
        pen.slice(x, y, r, 20, 160, paint.shade)
    for x, y, r in ((-0.08, -0.24, 0.12), (0.18, -0.16, 0.09)):
        pen.slice(x, y, r, 190, 330, paint.tint)


def _car(pen: Pen, paint: Paint) -> None:
    pen.polygon([(-0.32, 0.0), (-0.2, -0.26), (0.14, -0.26), (0.28, 0.0)], paint.main)
    pen.polygon([(-0.24, -0.02), (-0.15, -0.2), (-0.04, -0.2), (-0.04, -0.02)], GLASS)
    pen.polygon([(0.02, -0.2), (0.11, -0.2), (0.2, -0.02), (0.02, -0.02)], GLASS)
    pen.box(-0.47, -0.02, 0.47, 0.2, paint.main, 0.09)
    pen.box(-0.47, 0.12, 0.47, 0.2, paint.shade, 0.04)
    pen.circle(0.42, 0.04, 0.04, GLOW)
    for x in (-0.25, 0.26):
        pen.circle(x, 0.2, 0.13, INK)
        pen.circle(x, 0.2, 0.06, STEEL)


def _bird(pen: Pen, paint: Paint) -> None:
    for x in (-0.04, 0.08):
        pen.line([(x, 0.24), (x + 0.02, 0.43), (x + 0.1, 0.43)], 0.03, FLAME)
    pen.polygon([(-0.22, 0.0), (-0.5, -0.16), (-0.46, 0.12)], paint.shade)
    pen.ellipse(-0.03, 0.08, 0.32, 0.22, paint.main, -0.25)
    pen.polygon([(0.34, -0.22), (0.5, -0.12), (0.34, -0.08)], FLAME)
    pen.circle(0.22, -0.16, 0.18, paint.main)
    pen.polygon([(0.1, 0.02), (-0.34, -0.36), (-0.22, 0.14)], paint.shade)
    pen.eye(0.27, -0.2, 0.055)


def _star(pen: Pen, paint: Paint) -> None:
    corners = _steps(-math.pi / 2, 1.5 * math.pi, 11)[:-1]
    radii = (0.48, 0.23)
    points = [(radii[k % 2] * math.cos(a), 0.03 + radii[k % 2] * math.sin(a)) for k, a in enumerate(corners)]
    pen.polygon(points, paint.main)
    pen.face(0, 0.02, 0.28)


def _flower(pen: Pen, paint: Paint) -> None:
    pen.line([(0, -0.05), (0.02, 0.2), (0, 0.47)], 0.05, LEAF)
    pen.ellipse(0.13, 0.32, 0.14, 0.055, LEAF, -0.5)
    pen.ellipse(-0.13, 0.38, 0.14, 0.055, LEAF, 0.5)
    for x, y in ring(0, -0.16, 0.2, 0.2, 6, 0.3):
        pen.circle(x, y, 0.13, paint.main)
    pen.circle(0, -0.16, 0.12, WOOD)
    pen.face(0, -0.17, 0.17)


def _cat(pen: Pen, paint: Paint) -> None:
    pen.line([(0.16 + 0.2 * math.sin(a), 0.36 - 0.13 * a) for a in _steps(0, 3.4, 24)], 0.075, paint.shade)
    pen.ellipse(-0.04, 0.24, 0.24, 0.23, paint.main)
    for x in (-0.13, 0.05):
        pen.ellipse(x, 0.43, 0.085, 0.05, paint.tint)
    for side in (-1, 1):
        pen.polygon(
            [(-0.06 + side * 0.25, -0.46), (-0.06 + side * 0.25, -0.12), (-0.06 + side * 0.04, -0.3)], paint.main
        )
        pen.polygon(
            [(-0.06 + side * 0.21, -0.39), (-0.06 + side * 0.21, -0.2), (-0.06 + side * 0.1, -0.29)], paint.shade
        )
    pen.ellipse(-0.06, -0.13, 0.27, 0.22, paint.main)
    for side in (-1, 1):
        pen.circle(-0.06 + side * 0.11, -0.16, 0.06, GLOW if paint.main != COLOURS["yellow"] else PAPER)
        pen.ellipse(-0.06 + side * 0.11, -0.16, 0.022, 0.05, INK)
        for y in (-0.07, -0.01):
            pen.line([(-0.06 + side * 0.09, -0.05), (-0.06 + side * 0.32, y - 0.02)], 0.014, paint.shade)
    pen.polygon([(-0.09, -0.08), (-0.03, -0.08), (-0.06, -0.04)], INK)


def _balloon(pen: Pen, paint: Paint) -> None:
    pen.line([(0.035 * math.sin(a), 0.2 + 0.29 * a / 6) for a in _steps(0, 6, 24)], 0.022, INK)
    pen.polygon([(0, 0.12), (0.06, 0.23), (-0.06, 0.23)], paint.shade)
    pen.ellipse(0, -0.15, 0.28, 0.33, paint.main)
    pen.ellipse(-0.11, -0.26, 0.05, 0.1, paint.tint, 0.5)


def _umbrella(pen: Pen, paint: Paint) -> None:
    pen.line([(0, -0.3), (0, 0.36), (0.03, 0.43), (0.1, 0.44), (0.14, 0.36)], 0.045, WOOD)
    pen.slice(0, 0.06, 0.47, 180, 360, paint.main)
    pen.polygon([(0, -0.41), (-0.16, 0.06), (0.16, 0.06)], paint.tint)
    for x in (-0.315, 0.0, 0.315):
        pen.ellipse(x, 0.07, 0.157, 0.06, paint.tint if x == 0.0 else paint.main)
    pen.line([(0, -0.41), (0, -0.46)], 0.04, WOOD)


def _mushroom(pen: Pen, paint: Paint) -> None:
    pen.polygon([(-0.13, 0.0), (0.13, 0.0), (0.19, 0.42), (-0.19, 0.42)], CREAM)
    pen.ellipse(0, 0.42, 0.19, 0.05, CREAM)
    pen.slice(0, 0.08, 0.46, 180, 360, paint.main)
    pen.ellipse(0, 0.08, 0.46, 0.09, paint.main)
    for x, y, r in ((-0.22, -0.06, 0.075), (0.03, -0.2, 0.085), (0.26, -0.02, 0.065), (-0.02, 0.05, 0.05)):
        pen.circle(x, y, r, paint.tint if paint.main == COLOURS["white"] else CREAM)


def _butterfly(pen: Pen, paint: Paint) -> None:
    for side in (-1, 1):
        pen.ellipse(side * 0.24, 0.19, 0.17, 0.2, paint.shade, side * 0.5)
        pen.ellipse(side * 0.26, -0.14, 0.22, 0.25, paint.main, side * 0.6)
        pen.circle(side * 0.3, -0.16, 0.09, paint.tint)
        pen.circle(side * 0.24, 0.21, 0.06, paint.tint)
        pen.line([(0, -0.2), (side * 0.06, -0.34), (side * 0.15, -0.42)], 0.025, INK)
    pen.ellipse(0, 0.03, 0.055, 0.29, INK)


def _robot(pen: Pen, paint: Paint) -> None:
    pen.line([(0, -0.3), (0, -0.43)], 0.03, INK)
    pen.circle(0, -0.44, 0.045, GLOW)
    for side in (-1, 1):
        pen.line([(side * 0.22, 0.02), (side * 0.38, 0.1), (side * 0.38, 0.24)], 0.08, STEEL)
        pen.box(side * 0.12 - 0.06, 0.28, side * 0.12 + 0.06, 0.47, STEEL, 0.02)
    pen.box(-0.25, -0.04, 0.25, 0.32, paint.main, 0.04)
    pen.box(-0.21, -0.34, 0.21, -0.07, paint.main, 0.05)
    pen.box(-0.14, 0.06, 0.14, 0.22, paint.shade, 0.02)
    for x in (-0.07, 0.0, 0.07):
        pen.circle(x, 0.14, 0.025, GLOW)
    for x in (-0.1, 0.1):
        pen.eye(x, -0.22, 0.065)


def _cup(pen: Pen, paint: Paint) -> None:
    pen.circle(0.27, 0.08, 0.19, paint.main)
    pen.circle(0.27, 0.08, 0.1, PAPER)
    for x in (-0.22, -0.06, 0.1):
        pen.line([(x + 0.03 * math.sin(a * 2), -0.3 - 0.05 * a) for a in _steps(0, 3.2, 16)], 0.03, STEEL)
    pen.box(-0.38, -0.24, 0.24, 0.42, paint.main, 0.09)
    pen.ellipse(-0.07, -0.22, 0.31, 0.06, paint.tint)
    pen.ellipse(-0.07, -0.21, 0.26, 0.04, WOOD)
    pen.box(-0.38, 0.12, 0.24, 0.2, paint.tint)


def _snail(pen: Pen, paint: Paint) -> None:
    pen.line([(-0.42, 0.36), (0.0, 0.36), (0.24, 0.34), (0.32, 0.1)], 0.13, SKIN)
    for x in (0.26, 0.42):
        pen.line([(0.33, 0.1), (x, -0.16)], 0.03, SKIN)
        pen.circle(x, -0.17, 0.04, INK)
    pen.circle(-0.1, 0.02, 0.33, paint.main)
    spiral = [
        (-0.1 + (0.26 - 0.034 * a) * math.cos(a), 0.02 + (0.26 - 0.034 * a) * math.sin(a)) for a in _steps(0, 7, 40)
    ]
    pen.line(spiral, 0.05, paint.shade)
    pen.circle(0.34, 0.14, 0.018, INK)


def _heart(pen: Pen, paint: Paint) -> None:
    turns = _steps(0, 2 * math.pi, 60)
    heights = [13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a) for a in turns]
    points = [(16 * math.sin(a) ** 3, height) for a, height in zip(turns, heights, strict=True)]
    pen.polygon([(x * 0.027, -0.04 - y * 0.027) for x, y in points], paint.main)
    pen.ellipse(-0.25, -0.22, 0.05, 0.09, paint.tint, 0.6)
    pen.face(0, -0.04, 0.27)


def _bell(pen: Pen, paint: Paint) -> None:
    pen.circle(0, 0.37, 0.1, WOOD)
    pen.circle(0, -0.4, 0.07, paint.shade)
    right = [(0.09 + 0.2 * s + 0.14 * s**6, -0.36 + 0.7 * s) for s in _steps(0, 1, 24)]
    pen.polygon(right + [(-x, y) for x, y in reversed(right)], paint.main)
    pen.ellipse(0, -0.3, 0.16, 0.13, paint.main)
    pen.box(-0.45, 0.28, 0.45, 0.36, paint.shade, 0.04)
    pen.ellipse(-0.13, -0.06, 0.035, 0.18, paint.tint, 0.14)


def _rabbit(pen: Pen, paint: Paint) -> None:
    for side in (-1, 1):
        pen.ellipse(side * 0.11, -0.32, 0.075, 0.18, paint.main, side * 0.2)
        pen.ellipse(side * 0.11, -0.31, 0.035, 0.12, paint.tint, side * 0.2)
        pen.ellipse(side * 0.16, 0.43, 0.13, 0.055, paint.main)
    pen.ellipse(0, 0.25, 0.23, 0.22, paint.main)
    pen.ellipse(0, 0.28, 0.13, 0.15, paint.tint)
    pen.circle(0, -0.08, 0.2, paint.main)
    for side in (-1, 1):
        pen.eye(side * 0.085, -0.11, 0.045)
    pen.circle(0, -0.03, 0.03, (240, 120, 140))
    pen.box(-0.03, 0.01, 0.03, 0.07, PAPER)


def _plane(pen: Pen, paint: Paint) -> None:
    pen.polygon([(-0.47, -0.32), (-0.3, -0.32), (-0.14, 0.0), (-0.4, 0.0)], paint.shade)
    pen.polygon([(0.1, -0.02), (-0.02, -0.28), (-0.1, -0.28), (-0.06, -0.02)], paint.shade)
    pen.ellipse(0.02, 0.03, 0.46, 0.15, paint.main)
    pen.polygon([(-0.47, -0.02), (-0.2, -0.1), (-0.2, 0.14)], paint.main)
    pen.polygon([(0.36, -0.07), (0.26, -0.07), (0.26, 0.02), (0.44, 0.02)], GLASS)
    for x in (-0.2, -0.08, 0.04, 0.16):
        pen.circle(x, 0.0, 0.035, GLASS)
    pen.polygon([(0.12, 0.08), (-0.08, 0.08), (-0.26, 0.36), (-0.14, 0.36)], paint.shade)


def _hat(pen: Pen, paint: Paint) -> None:
    pen.ellipse(0, 0.3, 0.47, 0.11, paint.shade)
    pen.ellipse(0, 0.27, 0.47, 0.1, paint.main)
    pen.polygon([(-0.3, -0.36), (0.3, -0.36), (0.26, 0.26), (-0.26, 0.26)], paint.main)
    pen.ellipse(0, 0.26, 0.26, 0.06, paint.main)
    pen.polygon([(-0.272, 0.08), (0.272, 0.08), (0.262, 0.24), (-0.262, 0.24)], paint.tint)
    pen.ellipse(0, -0.36, 0.3, 0.06, paint.shade)


THINGS: dict[str, Callable[[Pen, Paint], None]] = {
    "ball": _ball,
    "balloon": _balloon,
    "bell": _bell,
    "bird": _bird,
    "boat": _boat,
    "butterfly": _butterfly,
    "car": _car,
    "cat": _cat,
    "cup": _cup,
    "fish": _fish,
    "flower": _flower,
    "hat": _hat,
    "heart": _heart,
    "house": _house,
    "kite": _kite,
    "mushroom": _mushroom,
    "plane": _plane,
    "rabbit": _rabbit,
    "robot": _robot,
    "rocket": _rocket,
    "snail": _snail,
    "star": _star,
    "tree": _tree,
    "umbrella": _umbrella,
}


# ---------------------------------------------------------------- backdrops
# They are pale, so that the actors stand out.


def _sky(pen: Pen, top: RGB, bottom: RGB, until: Number = 0.5, bands: int = 96) -> None:
    for k in range(bands):
        y = -0.5 + (until + 0.5) * k / bands
        pen.box(-0.7, y, 0.7, 0.5, mix(top, bottom, k / (bands - 1)))


def _cloud(pen: Pen, x: Number, y: Number, size: Number, fill: RGB) -> None:
    for dx, dy, r in ((-0.9, 0.15, 0.5), (0, -0.1, 0.75), (0.9, 0.15, 0.5), (0.4, 0.2, 0.5), (-0.4, 0.2, 0.5)):
        pen.ellipse(x + dx * size, y + dy * size, r * size, r * size * 0.75, fill)


def _hill(pen: Pen, base: Number, height: Number, wave: Number, phase: Number, fill: RGB) -> None:
    tops = [(x, base - height * math.sin(x * wave + phase)) for x in _steps(-0.7, 0.7, 60)]
    pen.polygon([*tops, (0.7, 0.51), (-0.7, 0.51)], fill)


def _scatter(count: int, top: Number, bottom: Number) -> list[tuple[float, float, float]]:
    """Return `count` points (x, y), each with a number from 0 to 1, that look random but never change.

    The fractional parts of the multiples of an irrational number are spread evenly.
    """
    return [((k * 0.75488 % 1) * 1.36 - 0.68, top + (bottom - top) * (k * 0.56984 % 1), k * 0.61803 % 1)
            for k in range(1, count + 1)]  # fmt: skip


def _sea(pen: Pen) -> None:
    _sky(pen, (176, 214, 238), (226, 240, 244), 0.02)
    _cloud(pen, -0.4, -0.34, 0.1, (246, 250, 252))
    _cloud(pen, 0.42, -0.4, 0.08, (246, 250, 252))
    pen.box(-0.7, 0.02, 0.7, 0.51, (104, 168, 194))
    for row in range(6):
        y = 0.07 + 0.08 * row
        wave = [(x, y + 0.012 * math.sin(x * 28 + row * 2.1)) for x in _steps(-0.7, 0.7, 120)]
        pen.line(wave, 0.012, (146, 198, 216))


def _meadow(pen: Pen) -> None:
    _sky(pen, (196, 224, 240), (240, 246, 236), 0.2)
    _cloud(pen, 0.36, -0.36, 0.1, (252, 253, 252))
    _hill(pen, 0.14, 0.07, 5, 0.6, (172, 204, 146))
    _hill(pen, 0.24, 0.05, 6, 2.4, (152, 190, 122))
    for x, y, r in _scatter(46, 0.3, 0.49):
        pen.circle(x, y, 0.006 + 0.006 * r, (238, 240, 216))


def _night(pen: Pen) -> None:
    _sky(pen, (20, 24, 58), (62, 66, 116))
    for x, y, r in _scatter(80, -0.5, 0.25):
        pen.circle(x, y, 0.002 + 0.004 * r, (226, 226, 206))
    outer = [(0.46 + 0.09 * math.sin(a), -0.36 + 0.09 * math.cos(a)) for a in _steps(-0.4, 2.9, 30)]
    inner = [(0.43 + 0.075 * math.sin(a), -0.375 + 0.075 * math.cos(a)) for a in _steps(2.7, 0.0, 30)]
    pen.polygon(outer + inner, (240, 236, 206))
    _hill(pen, 0.4, 0.04, 6, 1.0, (30, 34, 62))


def _desert(pen: Pen) -> None:
    _sky(pen, (252, 224, 186), (252, 240, 216), 0.2)
    pen.circle(-0.46, -0.33, 0.08, (255, 246, 214))
    _hill(pen, 0.16, 0.06, 5, 2.2, (234, 204, 150))
    _hill(pen, 0.28, 0.05, 7, 0.4, (222, 188, 130))
    for x, y in ((-0.57, 0.2), (0.58, 0.14)):
        green = (150, 162, 118)
        pen.line([(x, y - 0.2), (x, y + 0.14)], 0.045, green)
        pen.line([(x, y), (x - 0.07, y), (x - 0.07, y - 0.09)], 0.032, green)
        pen.line([(x, y + 0.04), (x + 0.07, y + 0.04), (x + 0.07, y - 0.06)], 0.032, green)


def _street(pen: Pen) -> None:
    _sky(pen, (206, 216, 224), (232, 234, 234), 0.3)
    for k, (x, _, r) in enumerate(sorted(_scatter(8, 0, 1))):
        top = -0.26 + 0.26 * r
        pen.box(x - 0.1, top, x + 0.09, 0.3, ((200, 192, 186), (210, 204, 196), (192, 196, 200))[k % 3])
        for row in range(5):
            for column in (-0.055, 0.045):
                y = top + 0.05 + 0.1 * row
                if y < 0.16:
                    pen.box(x + column - 0.022, y, x + column + 0.022, y + 0.05, (222, 226, 226))
    pen.box(-0.7, 0.22, 0.7, 0.3, (206, 204, 200))
    pen.box(-0.7, 0.3, 0.7, 0.51, (134, 136, 142))
    for k in range(8):
        pen.box(-0.64 + 0.18 * k, 0.39, -0.54 + 0.18 * k, 0.41, (220, 220, 214))


def _room(pen: Pen) -> None:
    pen.box(-0.7, -0.51, 0.7, 0.51, (236, 222, 204))
    for k in range(12):
        pen.box(-0.68 + 0.12 * k, -0.51, -0.64 + 0.12 * k, 0.3, (230, 212, 190))
    pen.box(0.24, -0.42, 0.6, -0.04, (250, 248, 242))
    pen.box(0.26, -0.4, 0.58, -0.06, (198, 224, 236))
    pen.box(0.41, -0.4, 0.43, -0.06, (250, 248, 242))
    pen.box(0.26, -0.24, 0.58, -0.22, (250, 248, 242))
    pen.box(-0.6, -0.34, -0.34, -0.12, (176, 148, 118))
    pen.box(-0.58, -0.32, -0.36, -0.14, (222, 218, 200))
    pen.box(-0.7, 0.26, 0.7, 0.3, (248, 242, 232))
    pen.box(-0.7, 0.3, 0.7, 0.51, (196, 162, 126))
    for y in (0.36, 0.43):
        pen.box(-0.7, y, 0.7, y + 0.006, (180, 146, 110))


def _snow(pen: Pen) -> None:
    _sky(pen, (186, 200, 216), (220, 228, 236), 0.25)
    for x, size in ((-0.56, 0.24), (-0.4, 0.16), (0.44, 0.18), (0.6, 0.26)):
        for level in range(3):
            y = 0.16 - size * (0.3 + 0.32 * level)
            half = size * (0.42 - 0.1 * level)
            pen.polygon(
                [(x - half, y + size * 0.36), (x + half, y + size * 0.36), (x, y - size * 0.16)], (148, 170, 172)
            )
    _hill(pen, 0.2, 0.04, 5, 0.9, (236, 241, 246))
    _hill(pen, 0.34, 0.03, 7, 2.9, (246, 249, 252))
    for x, y, r in _scatter(70, -0.5, 0.5):
        pen.circle(x, y, 0.004 + 0.006 * r, (252, 253, 255))


def _seabed(pen: Pen) -> None:
    _sky(pen, (108, 186, 196), (34, 104, 132), 0.4)
    _hill(pen, 0.42, 0.025, 8, 0.5, (206, 192, 148))
    for x, height in ((-0.6, 0.5), (-0.5, 0.3), (0.5, 0.36), (0.6, 0.56)):
        weed = [(x + 0.025 * math.sin(s * 14), 0.46 - height * s) for s in _steps(0, 1, 30)]
        pen.line(weed, 0.035, (42, 122, 104))
    for x, y, r in _scatter(18, -0.46, 0.3):
        pen.circle(x, y, 0.006 + 0.012 * r, (150, 210, 216))


def _stage(pen: Pen) -> None:
    pen.box(-0.7, -0.51, 0.7, 0.51, (118, 104, 112))
    pen.ellipse(0, 0.02, 0.56, 0.56, (170, 156, 152))
    pen.ellipse(0, 0.04, 0.46, 0.48, (204, 192, 180))
    pen.box(-0.7, 0.3, 0.7, 0.51, (164, 128, 96))
    pen.ellipse(0, 0.38, 0.46, 0.09, (200, 170, 134))
    for side in (-1, 1):
        for k in range(4):
            x = side * (0.68 - 0.05 * k)
            low = 0.5 - 0.03 * k
            pen.polygon([(x, -0.51), (x - side * 0.05, -0.51), (x - side * 0.05, low), (x, low)],
                        (136, 44, 54) if k % 2 else (116, 34, 46))  # fmt: skip
    for k in range(11):
        pen.ellipse(-0.65 + 0.13 * k, -0.5, 0.075, 0.1, (136, 44, 54) if k % 2 else (116, 34, 46))


BACKDROPS: dict[str, Callable[[Pen], None]] = {
    "desert": _desert,
    "meadow": _meadow,
    "night": _night,
    "room": _room,
    "sea": _sea,
    "seabed": _seabed,
    "snow": _snow,
    "stage": _stage,
    "street": _street,
}


# ---------------------------------------------------------------- frames


@lru_cache(maxsize=64)
def _backdrop(name: str, width: int, height: int) -> Image.Image:
    """Return a backdrop at this size. A frame narrower than 4:3 shows the middle of the stage."""
    drawn = Image.new("RGB", (round(960 * STAGE_WIDTH), 960), PAPER)
    BACKDROPS[name](Pen(drawn))
    across = drawn.height * width / height
    middle = drawn.width / 2
    return drawn.resize(
        (width, height), Image.Resampling.LANCZOS, box=(middle - across / 2, 0, middle + across / 2, drawn.height)
    )


@cache
def _pictures(thing: str, colour: str) -> tuple[Image.Image, ...]:
    """Return pictures of a thing at several sizes, as stickers with a transparent background.

    Each size is smaller than the one before by the square root of two. A picture is never reduced by more than that,
    because it would alias. A dark rim and a white rim separate any colour from any backdrop.
    """
    drawn = Image.new("RGBA", (DRAWN, DRAWN), (0, 0, 0, 0))
    THINGS[thing](Pen(drawn, margin=0.05), Paint.of(colour))
    drawn = drawn.resize((LARGEST, LARGEST), Image.Resampling.BOX)
    outline = Image.new("RGBA", drawn.size, (0, 0, 0, 0))
    for width, fill in ((0.036, PAPER), (0.018, INK)):
        spread = drawn.getchannel("A").filter(ImageFilter.GaussianBlur(width * LARGEST))
        # At one blur radius from the edge, the blurred alpha has fallen to about a seventh of 255.
        rim = spread.point([min(255, max(0, (value - 24) * 9)) for value in range(256)])
        outline = Image.alpha_composite(outline, _filled(fill, rim))
    sticker = Image.alpha_composite(outline, drawn)
    sides = [round(LARGEST / 2 ** (k / 2)) for k in range(10)]
    return tuple(sticker.resize((side, side), Image.Resampling.LANCZOS) for side in sides)


def _filled(colour: RGB, alpha: Image.Image) -> Image.Image:
    image = Image.new("RGBA", alpha.size, colour)
    image.putalpha(alpha)
    return image


def draw(backdrop: str, placed: Iterable[Placed], width: int, height: int) -> NDArray[np.uint8]:
    """Draw a frame: a backdrop, and things on it.

    Args:
        backdrop: A key of BACKDROPS.
        placed: The things, from the farthest to the nearest.
        width: The width of the frame, in pixels.
        height: The height of the frame, in pixels.
    """
    frame = _backdrop(backdrop, width, height).copy()
    for thing in placed:
        _paste(frame, thing)
    return np.asarray(frame).copy()


def _paste(frame: Image.Image, placed: Placed) -> None:
    """Paste a thing onto a frame, scaled, rotated and mirrored."""
    side = placed.size * frame.height
    if side < 1:
        return
    centre_x = frame.width / 2 + placed.x * frame.height
    centre_y = frame.height / 2 + placed.y * frame.height
    cos, sin = math.cos(placed.angle), math.sin(placed.angle)
    reach = side * (abs(cos) + abs(sin)) / 2
    left, top = math.floor(centre_x - reach), math.floor(centre_y - reach)
    right, bottom = math.ceil(centre_x + reach), math.ceil(centre_y + reach)
    left, top, right, bottom = max(left, 0), max(top, 0), min(right, frame.width), min(bottom, frame.height)
    if left >= right or top >= bottom:
        return
    pictures = _pictures(placed.thing, placed.colour)
    picture = next((p for p in reversed(pictures) if p.width >= side), pictures[0])
    scale = picture.width / side
    mirror = -1 if placed.flipped else 1
    # The affine map goes from a pixel of the frame to a pixel of the picture: move to the centre, rotate back, scale,
    # mirror.
    a, b, d, e = mirror * scale * cos, mirror * scale * sin, -scale * sin, scale * cos
    x, y = left - centre_x, top - centre_y
    half = picture.width / 2
    turned = picture.transform(
        (right - left, bottom - top),
        Image.Transform.AFFINE,
        (a, b, a * x + b * y + half, d, e, d * x + e * y + half),
        Image.Resampling.BILINEAR,
    )
    frame.paste(turned, (left, top), turned)
