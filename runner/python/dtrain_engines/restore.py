"""Brings the newest complete checkpoint to every host, or says what it lacks."""

from pathlib import Path

from .copies import Transfer, exchange
from .hosts import Hosts
from .job import JobError
from .manifest import NAME, Manifest, folder_of, steps_in

MOST_NAMES = 4


def newest_complete(hosts: Hosts) -> int | None:
    """The step of the newest checkpoint of which the hosts together have every file; `None` if none was ever written.

    When it returns, every host has all files of that checkpoint. All ranks call this together.
    """
    held = hosts.on_stores(lambda: _manifests(hosts.checkpoints))
    candidates: list[Manifest] = []
    for manifest in (manifest for manifests in held for manifest in manifests.values()):
        if manifest not in candidates:
            candidates.append(manifest)
    # Of two of the same step, as hosts that were lost for a while may have, the one that more hosts have.
    candidates.sort(key=lambda one: (one.step, sum(one in manifests.values() for manifests in held)), reverse=True)
    lacking: list[tuple[Manifest, list[str]]] = []
    for manifest in candidates:
        missing = _bring(hosts, manifest)
        if not missing:
            if lacking and hosts.rank == 0:
                print(f"training goes on from step {manifest.step}: {_words(*lacking[0])}", flush=True)
            return manifest.step
        lacking.append((manifest, missing))
    if lacking:
        manifest, missing = lacking[0]
        writers = " and ".join(str(host) for host in sorted({manifest.files[name].host for name in missing}))
        raise JobError(
            f"{_words(manifest, missing)}, and no older checkpoint is complete: bring host {writers} back, or copy "
            f"its {folder_of(hosts.checkpoints, manifest.step)} to a host of this trial, or start a new trial"
        )
    if hosts.saved_step:
        raise JobError(
            f"a checkpoint of step {hosts.saved_step} was saved, and no host has one in {hosts.checkpoints}: bring its "
            "host or its folder back, or start a new trial"
        )
    return None


def _manifests(checkpoints: Path) -> dict[int, Manifest]:
    found = ((step, Manifest.read(folder_of(checkpoints, step))) for step in steps_in(checkpoints))
    return {step: manifest for step, manifest in found if manifest and manifest.step == step}


def _bring(hosts: Hosts, manifest: Manifest) -> list[str]:
    """Sends the files of a checkpoint to the hosts that lack them. Returns those that no host has intact."""
    folder = folder_of(hosts.checkpoints, manifest.step)
    has: list[set[str]] = hosts.on_stores(lambda: manifest.intact(folder, manifest.present(folder)))
    while True:
        missing = sorted(set(manifest.files).difference(*has))
        if missing:
            return missing
        transfers = [
            Transfer(name, _source(has, name, hosts.store_of_host.get(file.host), index), to)
            for to in range(len(has))
            for index, (name, file) in enumerate(sorted(manifest.files.items()))
            if name not in has[to]
        ]
        if not transfers:
            hosts.on_stores(lambda: _keep(folder, manifest))
            return []
        damaged = exchange(hosts, folder, manifest, transfers)
        for transfer in transfers:
            if transfer in damaged:
                # The source gets the file from another host in the next turn.
                has[transfer.source].discard(transfer.name)
            else:
                has[transfer.to].add(transfer.name)


def _source(has_by_store: list[set[str]], name: str, writer: int | None, index: int) -> int:
    """A store that has a file: the one that wrote it, or else another, so that all send."""
    sources = [store for store, has in enumerate(has_by_store) if name in has]
    return writer if writer in sources else sources[index % len(sources)]


def _keep(folder: Path, manifest: Manifest) -> None:
    """Makes a folder that has all files of a checkpoint a complete one, without files of another attempt."""
    for file in folder.iterdir():
        if file.is_file() and file.name != NAME and file.name not in manifest.files:
            file.unlink()
    if Manifest.read(folder) != manifest:
        manifest.write(folder)


def _words(manifest: Manifest, missing: list[str]) -> str:
    more = f" and {len(missing) - MOST_NAMES} more files" if len(missing) > MOST_NAMES else ""
    names = ", ".join(missing[:MOST_NAMES])
    return f"the checkpoint of step {manifest.step} is not complete: {names}{more} is missing or damaged on every host"
