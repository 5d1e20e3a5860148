"""The config, or the shape of --to, decides once where records are; Kafka's client is loaded only for Kafka."""

import subprocess
import sys

import pytest

from xrex.data.log.config import DirectoryLog
from xrex.data.log.directory import DirectorySource, DirectoryTopicWriter
from xrex.data.log.open import open_log, open_writer


def test_a_folder_is_written_and_read_without_loading_kafkas_client(tmp_path):
    program = f"""
import sys
from xrex.data.log.config import DirectoryLog
from xrex.data.log.open import open_log, open_writer
open_writer({str(tmp_path)!r}, "events", 1).append(0, [(1, b"k", b"v")])
log = open_log(DirectoryLog(path={str(tmp_path)!r}), "events")
log.assign({{0: 0}})
assert log.poll(0)[0].value == b"v"
print("kafka" in sys.modules, "jax" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False False\n"


@pytest.mark.parametrize("folder", ["log", "./log:1", "runs/log:9092", "log:port"])
def test_what_is_no_list_of_host_and_port_is_a_folder(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    writer = open_writer(folder, "events", 1)
    assert isinstance(writer, DirectoryTopicWriter)
    assert isinstance(open_log(DirectoryLog(path=folder), "events"), DirectorySource)
    writer.close()
