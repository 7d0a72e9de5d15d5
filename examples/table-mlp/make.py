"""Writes rings.csv: four columns in which three classes lie around each other like rings."""

import csv
import math
import random

chance = random.Random(1)
with open("rings.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["a", "b", "c", "d", "ring"])
    for _ in range(900):
        ring = chance.randrange(3)
        angle, radius = chance.uniform(0, 2 * math.pi), 1 + ring + chance.gauss(0, 0.18)
        x, y = radius * math.cos(angle), radius * math.sin(angle)
        columns = [x + chance.gauss(0, 0.05), y + chance.gauss(0, 0.05), x + y + chance.gauss(0, 0.2), chance.gauss(0, 1)]
        rows.writerow([f"{value:.3f}" for value in columns] + [ring])
