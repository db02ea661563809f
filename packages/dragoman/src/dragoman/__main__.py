"""`python -m dragoman` is the `dragoman` command."""

from dragoman_cli.main import main

if __name__ == "__main__":
    main()
