"""`python -m kcverify`."""

from kcverify.cli import main

main()
