"""Writes scikit-learn's 1,797 handwritten digits (8 x 8 pixels, 0 to 16) as a CSV: p0 … p63, digit.

Rows are shuffled once, always alike, so that the part held back has digits of every writer.
"""

import csv
import os
import random
import sys

from sklearn.datasets import load_digits

digits = load_digits()
pairs = list(zip(digits.data, digits.target))
random.Random(1).shuffle(pairs)
with open(sys.argv[1] + ".partial", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow([f"p{i}" for i in range(64)] + ["digit"])
    for pixels, digit in pairs:
        rows.writerow([int(p) for p in pixels] + [int(digit)])
os.replace(sys.argv[1] + ".partial", sys.argv[1])
