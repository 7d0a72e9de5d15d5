"""Writes wheels of empty packages with these names and versions: stub_wheels.py FOLDER torch==2.15.0 …"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path


def record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def write_wheel(folder: Path, name: str, version: str) -> None:
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": b"",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: stub\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(record_line(path, content) for path, content in files.items()) + f"{about}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in {**files, f"{about}/RECORD": record.encode()}.items():
            wheel.writestr(path, content)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for requirement in sys.argv[2:]:
        write_wheel(folder, *requirement.split("=="))


if __name__ == "__main__":
    main()
