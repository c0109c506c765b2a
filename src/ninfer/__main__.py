"""`python -m ninfer` is the `ninfer` command."""

from ninfer.cli.main import main

if __name__ == "__main__":
    main()
