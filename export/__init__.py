"""From a trained run to a deployable bundle (installed as `qcn.export`). Nothing is here yet."""
