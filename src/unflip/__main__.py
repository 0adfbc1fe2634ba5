"""``python -m unflip`` is the ``unflip`` command."""

from unflip.cli import main

main()
