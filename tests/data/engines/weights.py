"""Prints the largest difference between the weights of two folders of Hugging Face: weights.py FOLDER FOLDER"""

import sys
from pathlib import Path

from safetensors.torch import load_file


def main() -> None:
    one, other = (load_file(Path(folder) / "model.safetensors") for folder in sys.argv[1:])
    assert one.keys() == other.keys(), sorted(one.keys() ^ other.keys())
    print(max((one[name].float() - other[name].float()).abs().max().item() for name in one))


if __name__ == "__main__":
    main()
