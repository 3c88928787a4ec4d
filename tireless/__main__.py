"""`python -m tireless`: calls cli.main, nothing else."""

from __future__ import annotations

from tireless.cli import main

if __name__ == "__main__":
    main()
