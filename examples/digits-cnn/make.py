"""Writes images.idx and labels.idx: digits as a pocket calculator shows them, shifted, slanted and noisy."""

import random
import struct

SIDE = 12
# Segments: top, upper left, upper right, middle, lower left, lower right, bottom.
DIGITS = ["1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011"]
LINES = [(0, 0, 4, 0), (0, 0, 0, 4), (4, 0, 4, 4), (0, 4, 4, 4), (0, 4, 0, 8), (4, 4, 4, 8), (0, 8, 4, 8)]


def image(digit, chance):
    pixels = [min(255, int(abs(chance.gauss(0, 40)))) for _ in range(SIDE * SIDE)]
    left, top, slant = chance.randint(1, 5), chance.randint(0, 3), chance.choice([0, 0.15, 0.25])
    for on, (x0, y0, x1, y1) in zip(DIGITS[digit], LINES):
        for part in range(9 if on == "1" else 0):
            x, y = x0 + (x1 - x0) * part / 8, y0 + (y1 - y0) * part / 8
            column, row = round(left + x + slant * (8 - y)), round(top + y)
            if 0 <= column < SIDE and 0 <= row < SIDE and chance.random() > 0.08:
                pixels[row * SIDE + column] = chance.randint(140, 255)
    return bytes(pixels)


chance = random.Random(1)
labels = [chance.randrange(10) for _ in range(1000)]
with open("images.idx", "wb") as file:
    file.write(struct.pack(">IIII", 0x803, len(labels), SIDE, SIDE))
    file.writelines(image(label, chance) for label in labels)
with open("labels.idx", "wb") as file:
    file.write(struct.pack(">II", 0x801, len(labels)) + bytes(labels))
