"""Classify the frames of a CSI camera, which GStreamer brings through a pipe. Needs qcn and gst-launch-1.0, no OpenCV.

    python deploy/jetson/csi_camera.py BUNDLE
    python deploy/jetson/csi_camera.py BUNDLE --source 'videotestsrc is-live=true ! videoconvert'     # without a camera

A CSI camera gives raw Bayer. `nvarguscamerasrc` has the Jetson's image processor make pictures of it, `nvvidconv`
copies them to memory that the CPU reads. Frames that come while one is classified are dropped: answers are of new ones.
"""

import argparse
import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

import qcn
from qcn.errors import MissingError, QcnError

SOURCE = "nvarguscamerasrc ! video/x-raw(memory:NVMM),width={width},height={height},framerate={fps}/1 ! nvvidconv"
# Four bytes per pixel: rows of any width then have no padding.
SINK = "queue leaky=downstream max-size-buffers=1 ! video/x-raw,format=RGBA,width={width},height={height} ! fdsink fd=1"


def frames(source: str, width: int, height: int, fps: int) -> Iterator[NDArray[np.uint8]]:
    """The frames of a GStreamer source, [height, width, 3], until it ends."""
    pipeline = f"{source} ! {SINK}".format(width=width, height=height, fps=fps)
    if not shutil.which("gst-launch-1.0"):
        raise MissingError("gst-launch-1.0 is not installed: sudo apt install gstreamer1.0-tools")
    with subprocess.Popen(["gst-launch-1.0", "-q", *pipeline.split()], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            while len(data := process.stdout.read(width * height * 4)) == width * height * 4:
                yield np.frombuffer(data, np.uint8).reshape(height, width, 4)[..., :3]
        finally:
            process.terminate()
    if process.returncode > 0:
        raise MissingError(f"gst-launch-1.0 ended with {process.returncode}; its pipeline was: {pipeline}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--source", default=SOURCE, help="the GStreamer elements before the conversion to RGBA")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--fps", type=int, default=30)
    parser.add_argument("--frames", type=int, help="stop after this many; at Ctrl-C if not given")
    given = parser.parse_args()
    model = qcn.load(given.bundle)
    print(f"{model.name} on {model.backend}", flush=True)
    pictures = itertools.islice(frames(given.source, given.width, given.height, given.fps), given.frames)
    for number, frame in enumerate(pictures, 1):
        start = time.perf_counter()
        answer = model.predict(frame)
        took = 1000 * (time.perf_counter() - start)
        print(f"frame {number}: {answer.label} {answer.probability:.4f}, {took:.2f} ms", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except QcnError as error:
        print(f"csi_camera: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
