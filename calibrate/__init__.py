"""Lower precision, chosen by measurement (installed as `qcn.calibrate`). Nothing is here yet."""
