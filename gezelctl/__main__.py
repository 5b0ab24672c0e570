"""`python -m gezelctl` is the same as the `gezelctl` command."""

from gezelctl.cli.main import main

if __name__ == "__main__":
    main()
