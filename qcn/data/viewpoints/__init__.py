"""The data sets that are rendered here: `dataset` lists and keeps them, `toys` makes the toys, `light` the lamps,
`raytrace` the pictures (and export/backends/web/toys.js those in a page).

Only `raytrace` needs torch, and it is imported only to render.
"""

from qcn.data.viewpoints.dataset import DATASETS

__all__ = ["DATASETS"]
