"""`python -m dragoman_cli`."""

from .main import main

main()
