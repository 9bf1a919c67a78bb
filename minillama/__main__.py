"""`python -m minillama`, and what `torchrun -m minillama` starts on every rank."""

from minillama.cli import main

if __name__ == "__main__":
    main()
