"""What a check of emitted files found: faults, and packages that are not installed."""

wrong = []
left_out = set()


def check(holds, path, words):
    if not holds:
        wrong.append(f"{path}: {words}")


def installed(package):
    """The module, or None with a word about it."""
    try:
        return __import__(package, fromlist=["x"])
    except ImportError as error:
        left_out.add(f"left out: {package} cannot be imported ({error})")
        return None
