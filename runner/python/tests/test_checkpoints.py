"""Tests of checkpoints over several hosts. They need torch, and are left out without it."""

import errno
import importlib.util
import io
import os
import shutil
import tempfile
import unittest
import zlib
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("PyTorch is not installed")

import cluster
from dtrain_engines import copies
from dtrain_engines.manifest import Manifest, remove_old
from torch.distributed.checkpoint.filesystem import FileSystem


def save_twice(rank: "cluster.Rank") -> int:
    rank.save(4)
    return rank.save(8)


def load(rank: "cluster.Rank") -> int | None:
    return rank.load()


class OnHosts(unittest.TestCase):
    """Checkpoints on hosts with folders of their own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def folders(self, hosts: int) -> list[Path]:
        return [self.root / f"host-{host}" for host in range(hosts)]

    def saved(self, hosts: int, ranks_per_host: int = 1) -> list[Path]:
        """The folders of hosts after two checkpoints."""
        folders = self.folders(hosts)
        for result in cluster.run(folders, ranks_per_host, save_twice):
            self.assertIsInstance(result, int, result)
        return folders

    def names(self, folder: Path) -> list[str]:
        return sorted(file.name for file in folder.iterdir())

    def test_the_manifest_names_the_files_of_all_hosts(self):
        folders = self.folders(2)
        results = cluster.run(folders, 2, save_twice)
        found = cluster.manifest(folders[0] / "step-8")
        self.assertEqual(found, cluster.manifest(folders[1] / "step-8"))
        files = found.pop("files")
        self.assertEqual(found, {"step": 8, "engine": "fsdp", "attempt": 1, "world": 4, "hosts": 2})
        names = [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))]
        self.assertEqual(sorted(files), names)
        self.assertEqual([files[name]["host"] for name in names], [0, 0, 0, 1, 1])
        for name, file in files.items():
            data = (folders[file["host"]] / "step-8" / name).read_bytes()
            self.assertEqual((file["bytes"], file["crc32"]), (len(data), zlib.crc32(data)))
        self.assertEqual(results, 4 * [sum(file["bytes"] for file in files.values())])

    def test_each_host_has_copies_of_the_files_of_the_one_before_it(self):
        folders = self.saved(3)
        own = [[".metadata", "__0_0.distcp"], ["__1_0.distcp"], ["__2_0.distcp"]]
        for host, folder in enumerate(folders):
            wanted = sorted([*own[host], *own[host - 1], "manifest.json"])
            self.assertEqual(self.names(folder / "step-8"), wanted)
            self.assertEqual(self.names(folder), ["step-4", "step-8"])

    def test_files_of_many_pieces_are_copied(self):
        with mock.patch.object(copies, "PIECE", 1000), mock.patch.object(copies, "ROUNDS", 7):
            folders = self.saved(2)
        files = Manifest.read(folders[0] / "step-8")
        for folder in folders:
            self.assertEqual(files.intact(folder / "step-8", files.files), set(files.files))

    def test_a_lost_host_loses_no_checkpoint(self):
        for hosts, ranks_per_host, lost in ((2, 2, 0), (2, 2, 1), (3, 1, 0), (3, 1, 1), (3, 1, 2), (3, 2, 1)):
            with self.subTest(hosts=hosts, ranks_per_host=ranks_per_host, lost=lost):
                folders = self.saved(hosts, ranks_per_host)
                shutil.rmtree(folders[lost])
                self.assertEqual(cluster.run(folders, ranks_per_host, load), hosts * ranks_per_host * [8])
                # Every host has all files now.
                files = Manifest.read(folders[0] / "step-8")
                for folder in folders:
                    self.assertEqual(self.names(folder / "step-8"), sorted([*files.files, "manifest.json"]))
                shutil.rmtree(self.root)

    def test_fewer_and_more_hosts_load_it(self):
        folders = self.saved(3)
        shutil.rmtree(folders[1])
        self.assertEqual(cluster.run([folders[2], folders[0]], 1, load), [8, 8])
        self.assertEqual(cluster.run([self.root / "new", *folders], 1, load), 4 * [8])

    def test_one_host_sends_nothing(self):
        with mock.patch.object(copies, "exchange", side_effect=AssertionError):
            folders = self.saved(1, 2)
            self.assertEqual(cluster.run(folders, 2, load), [8, 8])
        self.assertEqual(self.names(folders[0]), ["step-4", "step-8"])

    def test_hosts_that_share_a_folder_send_nothing(self):
        with mock.patch.object(copies, "exchange", side_effect=AssertionError):
            results = cluster.run(2 * [self.root / "shared"], 1, save_twice)
            found = cluster.manifest(self.root / "shared/step-8")
            self.assertEqual(results, 2 * [sum(file["bytes"] for file in found["files"].values())])
            self.assertEqual(found["hosts"], 2)
            self.assertEqual([found["files"][f"__{rank}_0.distcp"]["host"] for rank in (0, 1)], [0, 1])
            self.assertEqual(cluster.run(2 * [self.root / "shared"], 1, load), [8, 8])
        self.assertEqual(self.names(self.root / "shared"), ["step-4", "step-8"])

    def test_a_file_that_is_gone_everywhere_leaves_the_older_checkpoint(self):
        folders = self.saved(2)
        for folder in folders:
            (folder / "step-8/__1_0.distcp").unlink()
        self.assertEqual(cluster.run(folders, 1, load), [4, 4])

    def test_without_any_complete_checkpoint_the_start_is_refused(self):
        folders = self.saved(3)
        for host in (1, 2):
            shutil.rmtree(folders[host])
        (folders[0] / "step-4/.metadata").unlink()
        for result in cluster.run(folders, 1, load):
            self.assertRegex(result, "^JobError: the checkpoint of step 8 is not complete: __1_0.distcp is missing")
            self.assertIn("bring host 1 back, or copy its", result)
            self.assertIn("or start a new trial", result)

    def test_a_torn_file_is_replaced_by_its_copy(self):
        folders = self.saved(3)
        shutil.rmtree(folders[0])
        torn = folders[2] / "step-8/__1_0.distcp"
        torn.write_bytes(bytes(torn.stat().st_size))  # the copy; its length is right
        self.assertEqual(cluster.run(folders, 1, load), [8, 8, 8])
        data = torn.read_bytes()
        self.assertEqual(data, (folders[1] / "step-8/__1_0.distcp").read_bytes())
        for folder in folders[1:]:
            shutil.rmtree(folder / "step-4")
        whole = folders[1] / "step-8/__1_0.distcp"
        whole.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        (folders[0] / "step-8/__1_0.distcp").unlink()
        self.assertEqual(cluster.run(folders, 1, load), [8, 8, 8])
        self.assertEqual(whole.read_bytes(), data)
        self.assertEqual((folders[0] / "step-8/__1_0.distcp").read_bytes(), data)

    def test_a_file_that_is_damaged_on_its_way_comes_from_another_host(self):
        folders = self.saved(3)
        shutil.rmtree(folders[0])
        read = copies._Link._read

        def damaged(link: "copies._Link", piece: "copies._Piece"):
            # As if the file went bad between the look at its checksum and its sending.
            is_bad = (link.hosts.host, piece.transfer.name) == (1, "__1_0.distcp")
            return read(link, piece) * 0 if is_bad else read(link, piece)

        with mock.patch.object(copies._Link, "_read", damaged):
            self.assertEqual(cluster.run(folders, 1, load), [8, 8, 8])
        copy = (folders[2] / "step-8/__1_0.distcp").read_bytes()
        for folder in folders:
            self.assertEqual((folder / "step-8/__1_0.distcp").read_bytes(), copy)
            self.assertFalse((folder / "step-8/__1_0.distcp.partial").exists())

    def test_a_torn_file_without_a_copy_counts_as_missing(self):
        folders = self.saved(2)
        shutil.rmtree(folders[0])
        torn = folders[1] / "step-8/__1_0.distcp"
        torn.write_bytes(bytes(torn.stat().st_size))
        self.assertEqual(cluster.run(folders, 1, load), [4, 4])
        self.assertFalse((folders[0] / "step-8/__1_0.distcp.partial").exists())

    def test_a_checkpoint_without_a_manifest_does_not_count(self):
        folders = self.saved(2)
        for folder in folders:
            (folder / "step-8/manifest.json").unlink()
        self.assertEqual(cluster.run(folders, 1, load), [4, 4])
        for folder in folders:
            shutil.rmtree(folder / "step-4")
        self.assertEqual(cluster.run(folders, 1, load), [None, None])

    def test_files_of_another_attempt_do_not_count(self):
        folders = self.saved(2)
        # Host 1 was lost when the checkpoint was saved, and comes back with files of the same names and lengths.
        shutil.rmtree(folders[1] / "step-4")
        (folders[1] / "step-8/manifest.json").unlink()
        (folders[1] / "step-8/__7_0.distcp").write_bytes(b"of four hosts")
        old = folders[1] / "step-8/__1_0.distcp"
        old.write_bytes(bytes(old.stat().st_size))
        self.assertEqual(cluster.run(folders, 1, load), [8, 8])
        self.assertEqual(self.names(folders[1] / "step-8"), self.names(folders[0] / "step-8"))
        self.assertEqual(old.read_bytes(), (folders[0] / "step-8/__1_0.distcp").read_bytes())

    def test_a_save_removes_what_an_attempt_left_that_died(self):
        folders = self.folders(2)
        for step in (2, 4, 9):
            (folders[1] / f"step-{step}").mkdir(parents=True)
            (folders[1] / f"step-{step}/__7_0.distcp").write_bytes(b"torn")
        self.saved(2)
        # A later folder stays until training comes there.
        self.assertEqual(self.names(folders[1]), ["step-4", "step-8", "step-9"])
        self.assertNotIn("__7_0.distcp", self.names(folders[1] / "step-4"))

    def test_the_newest_complete_checkpoints_are_kept(self):
        for step, is_complete in {2: True, 4: True, 6: False, 8: True, 10: False}.items():
            folder = self.root / f"step-{step}"
            folder.mkdir()
            if is_complete:
                Manifest(step, 1, "fsdp", 1, 1, {}).write(folder)
        remove_old(self.root, 8, 2)
        self.assertEqual(self.names(self.root), ["step-10", "step-4", "step-8"])
        remove_old(self.root, 8, 0)
        self.assertEqual(self.names(self.root), ["step-10", "step-8"])

    def test_a_host_that_dies_while_it_saves_ends_the_others(self):
        def die(*_: object) -> None:
            os._exit(cluster.DIES)

        for place in ((copies._Link, "_write"), (Manifest, "write"), (FileSystem, "create_stream")):
            with self.subTest(place=place):
                folders = self.saved(3)

                def save(rank: "cluster.Rank") -> int:
                    with mock.patch.object(*place, die if rank.host == 1 else getattr(*place)):
                        return rank.save(12)

                results = cluster.run(folders, 1, save)
                self.assertEqual(results.pop(1), None)
                for result in results:
                    self.assertRegex(result, "^(Runtime|Dist[A-Za-z]*)Error: ")
                shutil.rmtree(folders[1])
                # With its manifest on one host, and copies of all files, it counts.
                wanted = 12 if place[0] is Manifest else 8
                self.assertEqual(cluster.run(folders, 1, load), 3 * [wanted])
                shutil.rmtree(self.root)

    def test_a_full_disk_at_a_save_leaves_no_folder(self):
        class Full(io.FileIO):
            """A file on a disk that has room for its first 2,000 bytes."""

            def write(self, data: object) -> int:
                if self.tell() + len(data) > 2000:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return super().write(data)

        # Python says why a write fails at the end. PyTorch's writer does not, of one in the middle.
        for disk, words in (
            (lambda _, mode: open("/dev/full", mode), "rank 1: OSError: .*No space left"),
            (Full, "rank 1: a write failed, most likely: No space left"),
        ):

            @contextmanager
            def full(self: FileSystem, path: Path, mode: str):
                with (disk if Path(path).name == "__1_0.distcp" else open)(path, mode) as stream:
                    yield stream

            with self.subTest(words):
                self.fail_to_save(mock.patch.object(FileSystem, "create_stream", full), words)

    def test_a_full_disk_at_a_copy_leaves_no_folder(self):
        write = copies._Link._write

        def full(link: "copies._Link", *piece: object) -> bool:
            if link.hosts.host == 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(link, *piece)

        # Host 0 goes on sending and receiving meanwhile.
        self.fail_to_save(mock.patch.object(copies._Link, "_write", full), "host 1: OSError: .*No space left")

    def fail_to_save(self, patch: "mock._patch", words: str) -> None:
        folders = self.saved(2)
        with patch, mock.patch.object(copies, "PIECE", 1000):
            results = cluster.run(folders, 1, lambda rank: rank.save(12))
        for result in results:
            self.assertRegex(result, f"^JobError: a checkpoint cannot be written to .*: {words}")
        for folder in folders:
            self.assertEqual(self.names(folder), ["step-4", "step-8"])
        self.assertEqual(cluster.run(folders, 1, load), [8, 8])

    def test_a_full_disk_at_the_start_is_told(self):
        folders = self.saved(2)
        shutil.rmtree(folders[1])

        def full(*_: object) -> bool:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with mock.patch.object(copies._Link, "_write", full):
            for result in cluster.run(folders, 1, load):
                self.assertRegex(result, "^JobError: a checkpoint cannot be written to .*: host 1: OSError")


if __name__ == "__main__":
    unittest.main()
