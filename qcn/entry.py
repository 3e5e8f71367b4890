"""The command `qcn`. Ctrl-C ends it with one line from its first moment on, while the rest is still being imported."""

import os


def main() -> None:
    try:
        import signal  # some milliseconds by itself

        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:  # else it is ignored, as in a shell's background jobs
            signal.signal(signal.SIGINT, _stop)
        from qcn.cli import main as run

        signal.signal(signal.SIGINT, before)
    except KeyboardInterrupt:
        _stop()
    run()


def _stop(*_: object) -> None:
    # At once: nothing has begun that would have to be cleaned up, and an exception could get lost inside an import.
    os.write(2, b"qcn: stopped\n")
    os._exit(130)
