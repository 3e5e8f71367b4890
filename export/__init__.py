"""From a trained run, or a bundle, to a deployable bundle (installed as `qcn.export`): `pipeline` is where to begin."""
