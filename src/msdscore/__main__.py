"""`python -m msdscore`, and the command `msdscore`."""

import signal

from msdscore.threads import use_one_blas_thread, wait_passively


def main() -> None:
    """Run the command line; Ctrl-C during the import of its modules ends it silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Before a command imports NumPy and torch.
    use_one_blas_thread()
    wait_passively()
    from msdscore.cli.app import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
