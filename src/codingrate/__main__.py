"""`python -m codingrate`, the same as `crate`."""

from .cli import main

if __name__ == "__main__":
    main()
