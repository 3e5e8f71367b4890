"""Lamps, eyes and surfaces of `viewpoints`: the numbers that every renderer of its pictures goes by. No torch here."""

from dataclasses import dataclass

SAMPLES = 2  # rays a pixel, each way
STEREO = 6.0  # degrees of azimuth between the two eyes
GROUND_ALBEDO = 0.75
GLOSS, SHININESS = 0.12, 16


@dataclass(frozen=True)
class Light:
    """A lamp at these angles (degrees; the azimuth is from the camera's) and the light that comes from everywhere."""

    azimuth: float
    elevation: float
    strength: float
    ambient: float


LIGHTS = (
    Light(azimuth=-45, elevation=55, strength=0.85, ambient=0.35),
    Light(azimuth=50, elevation=60, strength=0.75, ambient=0.45),
    Light(azimuth=-100, elevation=50, strength=0.95, ambient=0.30),
    Light(azimuth=110, elevation=50, strength=0.85, ambient=0.40),
    Light(azimuth=10, elevation=65, strength=0.70, ambient=0.35),
    Light(azimuth=170, elevation=60, strength=0.80, ambient=0.45),
)
