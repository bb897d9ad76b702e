"""`python -m msdscore`."""

from msdscore.cli.app import main

if __name__ == "__main__":
    main()
