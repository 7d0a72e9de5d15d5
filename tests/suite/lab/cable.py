"""A bad cable: carries frames between two devices, late, loses some and spoils some.

cable.py plain DEVICE 0|1     whether the device sends frames as a cable takes them: with checksums, none beyond the MTU
cable.py carry DEVICE DEVICE SECONDS LOST SPOILT
"""

import array
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time

SIOCETHTOOL = 0x8946
SET_CHECKSUMS, SET_TCP_SEGMENTS, SET_SEGMENTS = 0x17, 0x1F, 0x24
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
ALL_PROTOCOLS = 3


def plain(device, is_plain):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for order in [SET_CHECKSUMS, SET_TCP_SEGMENTS, SET_SEGMENTS]:
            value = array.array("B", struct.pack("II", order, 0 if is_plain else 1))
            request = struct.pack("16sP", device.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def opened(device):
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 23)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.bind((device, 0))
    end.setblocking(False)
    return end


def spoilt(frame, place):
    """The frame with two neighbouring words of its TCP data exchanged: the one change that a checksum cannot see."""
    if frame[12:14] != b"\x08\x00" or frame[23] != 6:
        return frame
    start = 14 + 4 * (frame[14] & 15)
    start += 4 * (frame[start + 12] >> 4)
    end = 14 + int.from_bytes(frame[16:18], "big")
    middle = start + 2 * int(place * (end - start) / 2)
    for at in [*range(middle, end - 3, 2), *range(start, middle, 2)]:
        if frame[at : at + 2] != frame[at + 2 : at + 4] and at + 4 <= end:
            return frame[:at] + frame[at + 2 : at + 4] + frame[at : at + 2] + frame[at + 4 :]
    return frame


def carry(one, other, delay, lost, spoil):
    ends = [opened(one), opened(other)]
    chance = random.Random(0)
    waiting, number = [], 0
    print("ready", flush=True)
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, [], [], patience)[0]:
            for _ in range(64):
                try:
                    frame = end.recv(1 << 16)
                except BlockingIOError:
                    break
                if chance.random() >= lost:
                    if chance.random() < spoil:
                        frame = spoilt(frame, chance.random())
                    to = ends[1] if end is ends[0] else ends[0]
                    heapq.heappush(waiting, (time.monotonic() + delay, number, to, frame))
                    number += 1
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(waiting)
            try:
                to.send(frame)
            except OSError:
                pass  # a full queue loses it, as queues do


if sys.argv[1] == "plain":
    plain(sys.argv[2], sys.argv[3] == "1")
else:
    carry(sys.argv[2], sys.argv[3], *map(float, sys.argv[4:7]))
