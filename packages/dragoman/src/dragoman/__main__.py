"""`python -m dragoman` is the `dragoman` command."""

from .cli import main

if __name__ == "__main__":
    main()
