"""Writes scikit-learn's 1,797 handwritten digits (8 x 8 pixels, 0 to 16) as a CSV: p0 … p63, digit."""

import csv
import sys

from sklearn.datasets import load_digits

digits = load_digits()
with open(sys.argv[1] + ".partial", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow([f"p{i}" for i in range(64)] + ["digit"])
    for pixels, digit in zip(digits.data, digits.target):
        rows.writerow([int(p) for p in pixels] + [int(digit)])

import os

os.replace(sys.argv[1] + ".partial", sys.argv[1])
