"""`python -m msdscore`, and the command `msdscore`."""

import signal

from msdscore.threads import wait_passively


def main() -> None:
    """Run the command line; Ctrl-C during the import of its modules ends it silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    wait_passively()  # before a command imports torch
    from msdscore.cli.app import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
