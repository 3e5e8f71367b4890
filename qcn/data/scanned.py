"""Google Scanned Objects: 50 household objects, scanned with their texture and rendered here, in colour.

"scanned" has pictures of 64×64 pixels, "scanned-128" the same with four times the pixels, for pretrained backbones.

Each object is a class, seen from 200 directions: every azimuth, elevations −20° to 80°, spread evenly over the sphere.
Light, distance and background are random. MuJoCo renders the meshes once; the pictures are kept in one file, after
which the meshes are not needed. Directions, light and background are the same on every machine. Pictures are the same
every time on one machine; with another version of MuJoCo or Mesa, or another processor, pixels may differ slightly.

The test asks for known objects from new views, drawn at random: 80 / 10 / 10 for training, validation and test.
(Downs et al. 2022, "Google Scanned Objects: A High-Quality Dataset of 3D Scanned Household Items".)
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from qcn.data.fit import fit
from qcn.data.imageset import ImageSet, Views
from qcn.data.rendered import keep, read_kept
from qcn.data.spec import Augmentation, Dataset
from qcn.data.splits import at_random
from qcn.direction import ROUND, direction_vector
from qcn.errors import MissingError, UsageError
from qcn.packages import installed
from qcn.terminal.progress import doing, shown


@dataclass(frozen=True)
class Scan:
    """An object: its folder in models/, the azimuth of its front in the mesh's own frame, and its symmetry.

    Fronts were judged by eye. Symmetries were measured, on pictures from three elevations: round, if a turn by any
    angle changes them by less than 3 of 255 on average; n-fold, if a turn by 360°/n changes them less than half as
    much as a turn by any angle does.
    """

    folder: str
    front: int = 270
    symmetry: int = 1


OBJECTS: dict[str, Scan] = {
    "doll": Scan("3D_Dollhouse_Happy_Brother"),
    "lamp": Scan("3D_Dollhouse_Lamp", symmetry=ROUND),
    "cooker": Scan("3D_Dollhouse_Sink"),
    "sofa": Scan("3D_Dollhouse_Sofa"),
    "running shoe": Scan("ASICS_GELDirt_Dog_4_SunFlameBlack"),
    "panda": Scan("Android_Figure_Panda"),
    "dragon": Scan("Animal_Planet_Foam_2Headed_Dragon"),
    "coffee maker": Scan("Black_Decker_CM2035B_12Cup_Thermal_Coffeemaker"),
    "toaster": Scan("Black_Decker_Stainless_Steel_Toaster_4_Slice"),
    "horse": Scan("Breyer_Horse_Of_The_Year_2015", 180),
    "chicken car": Scan("CHICKEN_RACER"),
    "rescue boat": Scan("COAST_GUARD_BOAT"),
    "court shoe": Scan("Chelsea_lo_fl_rdheel_nQ0LPNF1oMw", 180),
    "tortoise": Scan("Circo_Fish_Toothbrush_Holder_14995988"),
    "fabric cube": Scan("Closetmaid_Premium_Fabric_Cube_Red", symmetry=4),
    "hammer": Scan("Cole_Hardware_Hammer_Black"),
    "mug": Scan("Cole_Hardware_Mug_Classic_Blue"),
    "bell": Scan("Cole_Hardware_School_Bell_Solid_Brass_38", symmetry=ROUND),
    "alarm clock": Scan("Crosley_Alarm_Clock_Vintage_Metal"),
    "triceratops": Scan("Dino_5", 0),
    "fire engine": Scan("FIRE_ENGINE"),
    "bee": Scan("Fisher_price_Classic_Toys_Buzzy_Bee", 0),
    "raccoon": Scan("Guardians_of_the_Galaxy_Galactic_Battlers_Rocket_Raccoon_Figure", 0),
    "helicopter": Scan("HELICOPTER"),
    "knife block": Scan("JA_Henckels_International_Premio_Cutlery_Block_Set_14Piece"),
    "speaker": Scan("JBL_Charge_Speaker_portable_wireless_wired_Green", symmetry=2),
    "backpack": Scan("Jansport_School_Backpack_Blue_Streak"),
    "sheep": Scan("LACING_SHEEP"),
    "tricycle": Scan("Lalaloopsy_Peanut_Big_Top_Tricycle", 180),
    "excavator": Scan("MINI_EXCAVATOR"),
    "road roller": Scan("MINI_ROLLER"),
    "rolling lion": Scan("My_First_Rolling_Lion"),
    "pony": Scan("My_Little_Pony_Princess_Celestia"),
    "ninja turtle": Scan("Nickelodeon_Teenage_Mutant_Ninja_Turtles_Leonardo"),
    "game console": Scan("Nintendo_2DS_Crimson_Red"),
    "mario": Scan("Nintendo_Mario_Action_Figure"),
    "yoshi": Scan("Nintendo_Yoshi_Action_Figure"),
    "giraffe": Scan("Ortho_Forward_Facing"),
    "clamp": Scan("Pony_C_Clamp_1440"),
    "basket": Scan("RJ_Rabbit_Easter_Basket_Blue"),
    "headset": Scan("Razer_Kraken_Pro_headset_Full_size_Black"),
    "basketball shoe": Scan("Reebok_KAMIKAZE_II_MID"),
    "school bus": Scan("SCHOOL_BUS"),
    "eagle": Scan("Schleich_Bald_Eagle"),
    "bull": Scan("Schleich_Hereford_Bull"),
    "lion": Scan("Schleich_Lion_Action_Figure", 180),
    "orca": Scan("Sootheze_Toasty_Orca"),
    "locomotive": Scan("Thomas_Friends_Wooden_Railway_Talking_Thomas_z7yi7UFHJRj"),
    "riding boot": Scan("Tory_Burch_Kiernan_Riding_Boot"),
    "dog": Scan("Toysmith_Windem_Up_Flippin_Animals_Dog"),
}
CLASSES = tuple(OBJECTS)
VIEWS = 200
SIDE, LARGE = 64, 128  # pixels
LOWEST, HIGHEST = -20, 80  # elevations, in degrees
RENDERER = 1  # raise it whenever a picture changes: the set is then rendered again, into a new file
SAMPLES = 2  # per pixel, each way
FOV = 30  # degrees
PATCHES = 4  # of the background, each way: random colours that run into each other
LIBRARY = "apt install libosmesa6"
INSTALL = f"pip install 'qcn-toolkit[scanned]' and {LIBRARY}"
BY_HAND = (
    "Clone https://github.com/kevinzakka/mujoco_scanned_objects (1 GB) to DATA/scanned, DATA being what --data-dir "
    f"names, so that models/{next(iter(OBJECTS.values())).folder}/model.obj is in it. To render it: {INSTALL}"
)
FILES = ("model.obj", "texture.png")
# The front of the object is turned to +x.
SCENE = f"""
<mujoco>
  <visual>
    <global fovy="{FOV}" offwidth="{LARGE * SAMPLES}" offheight="{LARGE * SAMPLES}"/>
    <quality offsamples="0"/>
    <headlight diffuse="0 0 0" specular="0 0 0"/>
  </visual>
  <asset>
    <texture name="texture" type="2d" file="texture.png"/>
    <material name="surface" texture="texture" specular="0.2" shininess="0.3"/>
    <mesh name="object" file="model.obj" inertia="shell"/>
  </asset>
  <worldbody>
    <light type="directional" castshadow="false"/>
    <geom type="mesh" mesh="object" material="surface" euler="0 0 {{turn}}"/>
  </worldbody>
</mujoco>
"""


@dataclass(frozen=True)
class Scenes:
    """From where and how an object is rendered, one row per picture. Angles in degrees, colours from 0 to 1.

    azimuth, elevation   of the camera, as in `qcn.direction`
    distance             of the camera; at 1 the object's bounding sphere fills the picture
    lamp                 unit vector [N, 3] towards the lamp, in the object's frame
    strength, ambient    brightness of the lamp, and of the light that comes from everywhere
    background           colours [N, PATCHES, PATCHES, 3]
    """

    azimuth: NDArray[np.int64]
    elevation: NDArray[np.int64]
    distance: NDArray[np.float64]
    lamp: NDArray[np.float64]
    strength: NDArray[np.float64]
    ambient: NDArray[np.float64]
    background: NDArray[np.float64]


def random_scenes(name: str, count: int = VIEWS) -> Scenes:
    """Those of an object, the same every time: from the raw output of the bit generator, as in `qcn.data.splits`."""
    seed = int.from_bytes(hashlib.sha256(f"scanned {name}".encode()).digest()[:16], "big")
    numbers = np.random.PCG64(seed).random_raw(count * (7 + 3 * PATCHES**2)) / 2.0**64
    around, up, distance, lamp, high, strength, ambient, *colours = numbers.reshape(-1, count)
    patches = np.stack(colours, axis=-1).reshape(count, PATCHES, PATCHES, 3)
    low, top = np.sin(np.radians([LOWEST, HIGHEST]))
    return Scenes(
        azimuth=(360 * around).astype(np.int64) % 360,
        elevation=np.rint(np.degrees(np.arcsin(low + (top - low) * up))).astype(np.int64),
        distance=1 + 0.25 * distance,
        lamp=direction_vector(360 * lamp, 20 + 60 * high),
        strength=0.4 + 0.6 * strength,
        ambient=0.4 + 0.4 * ambient,
        background=(patches + patches.mean(-1, keepdims=True)) / 2,  # half as colourful, as rooms are
    )


def render(folder: Path, scenes: Scenes, front: int = 0, size: int = SIDE) -> NDArray[np.uint8]:
    """Pictures [N, 3, size, size] of the object whose model.obj and texture.png are in `folder`."""
    mujoco = _mujoco()
    try:
        files = {name: (folder / name).read_bytes() for name in FILES}
        model = mujoco.MjModel.from_xml_string(SCENE.format(turn=-front), files)
    except ValueError as error:
        raise UsageError(f"MuJoCo cannot read the mesh in {folder}: {' '.join(str(error).split())}") from None
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    points = model.mesh_vert @ data.geom_xmat[0].reshape(3, 3).T + data.geom_xpos[0]
    middle = (points.min(0) + points.max(0)) / 2
    radius = np.linalg.norm(points - middle, axis=1).max()
    model.stat.extent, model.vis.map.znear, model.vis.map.zfar = radius, 0.1, 20  # the last two in units of the first
    side = size * SAMPLES
    screen = mujoco.GLContext(side, side)
    screen.make_current()
    context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
    scene, options, camera = mujoco.MjvScene(model, 4), mujoco.MjvOption(), mujoco.MjvCamera()
    window, everything = mujoco.MjrRect(0, 0, side, side), mujoco.mjtCatBit.mjCAT_ALL
    colour, depth = np.empty((side, side, 3), np.uint8), np.empty((side, side), np.float32)
    images = np.empty((len(scenes.azimuth), 3, size, size), np.uint8)
    camera.lookat = middle
    try:
        for place in range(len(images)):
            # MuJoCo's angles say where the camera looks to, ours where it stands.
            camera.azimuth, camera.elevation = scenes.azimuth[place] + 180, -scenes.elevation[place]
            camera.distance = scenes.distance[place] * radius / np.sin(np.radians(FOV / 2))
            data.light_xdir[0] = -scenes.lamp[place]
            model.light_diffuse[0] = scenes.strength[place]
            model.vis.headlight.ambient = scenes.ambient[place]
            mujoco.mjv_updateScene(model, data, options, None, camera, everything, scene)
            mujoco.mjr_render(window, scene, context)
            mujoco.mjr_readPixels(colour, depth, window, context)  # the lowest row first
            picture = np.where(depth[::-1, :, None] < 1, colour[::-1], _background(scenes.background[place], side))
            images[place] = fit(picture, (3, size, size), "stretch")
    finally:
        context.free()
        screen.free()
    return images


def _background(colours: NDArray[np.float64], side: int) -> NDArray[np.uint8]:
    """Patches of colour [PATCHES, PATCHES, 3], interpolated to [side, side, 3]."""
    places = np.linspace(0, PATCHES - 1, side)
    weights = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(PATCHES)))
    return np.rint(255 * np.einsum("yi,xj,ijc->yxc", weights, weights, colours)).astype(np.uint8)


def _mujoco() -> ModuleType:
    """MuJoCo, rendering without a GPU or a screen unless the user's MUJOCO_GL says otherwise."""
    if not installed("mujoco"):
        raise MissingError(f"rendering scanned objects needs MuJoCo, which is not installed: {INSTALL}")
    os.environ.setdefault("MUJOCO_GL", "osmesa")  # read when MuJoCo is imported
    if installed("triton"):  # which training imports: Mesa has an LLVM too, and loaded after Mesa's, Triton's crashes
        import triton  # noqa: F401
    try:
        import mujoco

        mujoco.GLContext(SIDE, SIDE).free()
    except (ImportError, AttributeError, OSError, RuntimeError) as error:  # PyOpenGL without its library: any of these
        renderer = os.environ["MUJOCO_GL"]
        raise MissingError(f"MuJoCo cannot render by MUJOCO_GL={renderer} here ({error}): {LIBRARY}") from None
    return mujoco


def kept(size: int) -> str:
    """The file that has the pictures of a size."""
    return f"{len(OBJECTS)}x{VIEWS}-{size}px-renderer{RENDERER}.safetensors"


def read(folder: Path, size: int = SIDE) -> ImageSet:
    """All pictures by object: images [10000, 3, size, size]; rendered if they are not kept in `folder` yet."""
    path = folder / kept(size)
    if path.is_file():
        images = read_kept(path, (len(CLASSES) * VIEWS, 3, size, size))
    else:
        images = _render_all(folder / "models", size)
        keep(path, images)
    labels = np.repeat(np.arange(len(CLASSES)), VIEWS)
    scenes = [random_scenes(name) for name in CLASSES]
    elevation = np.concatenate([one.elevation for one in scenes])
    azimuth = np.concatenate([one.azimuth for one in scenes])
    views = Views(labels, elevation, azimuth, np.zeros_like(labels))
    return ImageSet(images, labels, CLASSES, views, symmetry=tuple(scan.symmetry for scan in OBJECTS.values()))


def _render_all(models: Path, size: int) -> NDArray[np.uint8]:
    paths = [models / scan.folder / name for scan in OBJECTS.values() for name in FILES]
    if missing := [path for path in paths if not path.is_file()]:
        raise MissingError(f"{len(missing):,} of {len(paths):,} files are missing, such as {missing[0]}. {BY_HAND}")
    images = []
    with shown():
        for done, (name, scan) in enumerate(OBJECTS.items()):
            doing(f"rendering scanned objects: {name}", done, of=len(OBJECTS))
            images.append(render(models / scan.folder, random_scenes(name), scan.front, size))
    return np.concatenate(images)


def _dataset(name: str, size: int) -> Dataset:
    return Dataset(
        name=name,
        summary=f"50 scanned objects, rendered, {size}×{size} colour; test on known objects from new views",
        classes=CLASSES,
        channels=3,
        size=size,
        folder="scanned",
        load=lambda folder: at_random(read(folder, size), "scanned"),
        augmentation=dict.fromkeys(("paper", "best"), Augmentation(shift=size // 16)),
        augment="turned",
        terms="CC BY 4.0; Google, and L. Downs and others: cite them",
        by_hand=BY_HAND,
    )


DATASETS = (_dataset("scanned", SIDE), _dataset("scanned-128", LARGE))
