#!/usr/bin/env bash
# Pillow opens the same 12-bit depth image with other values from a PGM than from a PNG, and both become white in RGB.
#
# Versions: pillow 13.0.0.
#
# The picture holds depths from 0 to 4095. A PGM file declares its largest value, here 4095. Pillow scales the values
# so that the largest becomes 65535, and opens the file in mode "I". A 16-bit PNG of the same array opens in mode "I;16"
# with the values as stored. Image.convert("RGB") scales neither: it clips every value above 255 to 255. It prints no
# warning.
#
# Why it surprises: both formats are lossless containers of the same integers. For 8-bit pictures convert("RGB") keeps
# the picture, so a loader that calls it on every file looks safe.
#
# Cost: calibration data or a test set of depth, X-ray or thermal pictures is almost all white. The scales of the int8
# model then fit pictures that it never receives, or a depth in millimetres is 16 times too large from a PGM.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --quiet pillow==13.0.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PY'
import sys

import numpy as np
import PIL
from PIL import Image

print("pillow", PIL.__version__)
print("expected: both files give depths up to 4095, and convert scales them to 0 to 255")
depth = np.linspace(0, 4095, 64 * 64).reshape(64, 64).astype(np.uint16)
with open("depth.pgm", "wb") as file:
    file.write(b"P5\n64 64\n4095\n" + depth.astype(">u2").tobytes())
Image.fromarray(depth).save("depth.png")

found = {}
for name in ("depth.pgm", "depth.png"):
    picture = Image.open(name)
    rgb = np.asarray(picture.convert("RGB"))
    found[name] = picture.mode, int(np.asarray(picture).max()), float((rgb == 255).mean())
    mode, largest, white = found[name]
    print(f"happened: {name}: mode {mode}, largest value {largest}, {white:.0%} of RGB is white")
same = np.array_equal(np.asarray(Image.open("depth.png")), depth)
if [found["depth.pgm"][:2], found["depth.png"][:2]] != [("I", 65535), ("I;16", 4095)] or not same:
    sys.exit("no longer as stated: the two files open in other modes or with other values")
if min(white for _, _, white in found.values()) < 0.9:
    sys.exit('no longer as stated: convert("RGB") does not clip at 255')
PY
