"""What was found, on disk after each part: JSON and a log of each, one page, and all of it in one archive."""

import io
import json
import os
import tarfile

# The largest archive, and the largest log in it.
ARCHIVE, LOG = 16 << 20, 1 << 20

# What to look at next: words of a failure, and the advice.
ADVICE = [
    ("nvrtc", "NVRTC: the table in docs/gpus.md lists what CUDA needs; `machine` says where it was looked for"),
    ("out of device memory", "memory: a smaller `--batch`, and `dtrain doctor --device cuda --only steps --model tiny`"),
    ("allocate buffer", "memory: one tensor is larger than a quarter of the GPU"),
    ("illegal", "an access outside of a buffer: `memcheck` names the kernel"),
    ("ERR_NVGPUCTRPERM", "counters are for root only: run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"),
    ("NCCL", "NCCL: `NCCL_DEBUG=INFO tests/gpu --only nccl,two-gpus`"),
    ("not done after", "a part that hangs: its log has the last thing that was said; try it alone with `--only`"),
    ("signal", "a process that died: its log has the last thing that was said"),
]


def write_part(session, name, verdict, seconds, limit, part, words):
    """One part on disk. Returns what the page needs of it."""
    record = {
        "part": name, "verdict": verdict, "seconds": round(seconds, 2), "limit_seconds": round(limit, 1), "words": words,
        "held": part.held if part else [], "differs": part.differs if part else [], "failed": part.failed if part else [],
        "tables": [{"title": title, "columns": columns, "rows": rows} for title, columns, rows in (part.tables if part else []) if rows],
    }
    documents = {"documents": part.documents} if part else {}
    replace(session.output / f"{name}.json", json.dumps({**record, **documents}, indent=1) + "\n")
    return record


def replace(path, text):
    """Writes a file as a whole: whoever looks finds the old or the new one."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def page(session, records, minutes, seconds, ending):
    """The page, in Markdown."""
    verdicts = {}
    for record in records:
        verdicts.setdefault(record["verdict"], []).append(record["part"])
    found = session.found
    lines = [f"# {found['name'] or session.device}, {session.device} {session.index}", ""]
    if "program" in found:
        versions = f"dtrain {found['program']}, burn {found['burn']}, cubecl {found['cubecl']}"
        lines += [f"{found['date']}; {versions}; driver {found['driver'] or 'unknown'}", ""]
    counts = ", ".join(f"{len(parts)} {word}" for word, parts in verdicts.items())
    lines += [f"{seconds:.0f} s of {minutes:g} minutes: {counts}.{' ' + ending if ending else ''}", ""]

    def section(title, sentences):
        if sentences:
            lines.extend([f"## {title}", "", *[f"- {sentence}" for sentence in sentences], ""])

    def of(key):
        return [f"{record['part']}: {one}" for record in records for one in record[key]]

    section("Failed", of("failed") + words_of(records, "hung", "failed"))
    section("Differs", of("differs"))
    section("Held", of("held"))
    section("Skipped", words_of(records, "skipped", "no time"))
    section("To look at next", next_steps(session, records))
    for record in records:
        for one in record["tables"]:
            lines += [f"## {record['part']}: {one['title']}", "", *table(one["columns"], one["rows"]), ""]
    lines += ["## Seconds", ""]
    lines += table(["part", "verdict", "seconds", "at most"], [
        [record["part"], record["verdict"], f"{record['seconds']:.1f}", f"{record['limit_seconds']:.0f}"] for record in records
    ])
    return "\n".join(lines) + "\n"


def words_of(records, *verdicts):
    return [f"{record['part']}: {record['words']}" for record in records if record["verdict"] in verdicts and record["words"]]


def next_steps(session, records):
    """What the findings suggest, the most urgent first."""
    advice, by_name = [], {record["part"]: record for record in records}
    for record in records:
        if record["differs"]:
            advice.append(f"{record['part']} differs: `{command(session, record['part'])}`, and {record['part']}.json")
    told = " ".join(words for record in records for words in [*record["failed"], record["words"] or ""])
    advice += [words for mark, words in ADVICE if mark.lower() in told.lower()]
    slow = [row for row in rows_of(by_name, "pytorch") if (share := number(row[4])) is not None and share < 0.5]
    if slow:
        worst = min(slow, key=lambda row: number(row[4]))
        kernels = rows_of(by_name, "profile")
        most = f"; {kernels[0][0]} takes {kernels[0][3]} of a step of gpt2" if kernels else ""
        advice.append(f"speed: {worst[0]} in {worst[1]} is {worst[4]} of PyTorch {worst[2]}{most}")
    for name in ("products", "attention"):
        shares = [(number(row[-1].rstrip(" %")), row) for row in rows_of(by_name, name) if row[-1]]
        if shares:
            share, row = max(shares, key=lambda one: one[0])
            if share < 40:
                advice.append(f"{name}: the best, in {row[0]} at {row[1]}, is {share:.0f} % of the peak")
    left = [record["part"] for record in records if record["verdict"] in ("no time", "hung", "failed")]
    if left:
        advice.append(f"what was not seen: `{command(session, ','.join(left))}`")
    return list(dict.fromkeys(advice))


def command(session, only):
    return f"tests/gpu --device {session.device} --only {only}"


def rows_of(by_name, name):
    tables = by_name.get(name, {"tables": []})["tables"]
    return tables[0]["rows"] if tables else []


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def table(columns, rows):
    """A table of Markdown that can also be read as it is."""
    rows = [[str(cell).replace("|", "/").replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in [columns, *rows]) for at in range(len(columns))]
    is_left = [not any(row[at][:1].isdigit() for row in rows) for at in range(len(columns))]

    def line(cells):
        return "| " + " | ".join(c.ljust(w) if left else c.rjust(w) for c, w, left in zip(cells, widths, is_left)) + " |"

    rule = "|" + "|".join("-" * (w + 1) + ("-" if left else ":") for w, left in zip(widths, is_left)) + "|"
    return [line(columns), rule, *[line(row) for row in rows]]


def pack(output):
    """Everything in the folder as one archive of at most 16 MiB; the largest files give way."""
    files = sorted((file for file in output.iterdir() if file.is_file() and not file.name.startswith("results.")), key=lambda f: f.stat().st_size)
    archive, beside = output / "results.tar.gz", output / "results.tar.gz.new"
    while True:
        with tarfile.open(beside, "w:gz", compresslevel=6) as opened:
            for file in files:
                text = file.read_bytes()
                if len(text) > LOG and file.suffix == ".log":
                    text = text[: LOG // 2] + b"\n[...]\n" + text[-LOG // 2 :]
                about = tarfile.TarInfo(f"results/{file.name}")
                about.size, about.mtime = len(text), int(file.stat().st_mtime)
                opened.addfile(about, io.BytesIO(text))
        if beside.stat().st_size <= ARCHIVE or len(files) < 2:
            break
        files.pop()
    os.replace(beside, archive)
