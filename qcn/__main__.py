"""The command `qcn`, also as `python -m qcn` and `torchrun … -m qcn`.

Ctrl-C and SIGTERM end it with one line from its first moment on, while it is being imported.
"""

import os
import sys


def main() -> None:
    try:
        import signal  # some milliseconds by itself

        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        before = {number: signal.getsignal(number) for number in usual}
        # Others are ignored, as Ctrl-C in a shell's background jobs, or belong to whoever set them.
        ours = {number: handler for number, handler in before.items() if handler is usual[number]}
        for number in ours:
            signal.signal(number, _stop)
        from qcn.cli import main as run

        sys.unraisablehook = _send_again
        for number, handler in ours.items():
            signal.signal(number, handler)
    except KeyboardInterrupt:
        _stop()
    run()


def _stop(*_: object) -> None:
    # At once: nothing has begun that would have to be cleaned up, and an exception could get lost inside an import.
    os.write(2, b"qcn: stopped\n")
    os._exit(130)


def _send_again(lost: "sys.UnraisableHookArgs") -> None:
    """A Ctrl-C in a callback or `__del__`, whose exceptions Python prints and forgets, comes again after it.

    The commands import the most, and an import has such callbacks.
    """
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    import signal

    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


if __name__ == "__main__":
    main()
