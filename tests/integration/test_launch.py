"""What a start sets for itself: huge pages in the environment, and a compilation cache in the run folder."""

import os

import pytest

from runs import train
from xrex.train import launch

ON, OFF = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 is set for this run", {"PHOENIX_MACHINE_SETTINGS": "off"}


def environment(**more):
    unset = ("GLIBC_TUNABLES", "JAX_COMPILATION_CACHE_DIR", "PHOENIX_MACHINE_SETTINGS")
    return {name: value for name, value in os.environ.items() if name not in unset} | more


@pytest.mark.slow
@pytest.mark.skipif(not launch.machine_settings({}), reason="glibc before 2.35, or a kernel without huge pages")
def test_a_start_sets_huge_pages_once_and_says_so_unless_it_is_told_not_to(small, tmp_path):
    for number, (given, said) in enumerate([({}, 1), (OFF, 0), ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, 0)]):
        ended = train(*small, "trainer.max_steps=1", "--run-dir", tmp_path / str(number), env=environment(**given))
        assert ended.stdout.count(ON) == said
    assert ON not in train(*small, "--dry-run", env=environment()).stdout


@pytest.mark.slow
def test_what_is_compiled_is_kept_in_the_run_folder_and_compiled_once(small, tmp_path):
    run_dir = tmp_path / "run"
    train(*small, "trainer.max_steps=15", "--run-dir", run_dir, env=environment())
    compiled = [path for path in (run_dir / "compiled").rglob("*-cache") if path.name.startswith("jit_step")]
    assert len(compiled) == 1
    train("--run-dir", run_dir, "trainer.max_steps=30", env=environment())
    assert [path for path in (run_dir / "compiled").rglob("*-cache") if path.name.startswith("jit_step")] == compiled


def test_nothing_is_set_where_it_would_do_nothing(monkeypatch, tmp_path):
    pages = tmp_path / "enabled"
    monkeypatch.setattr(launch, "HUGE_PAGES", pages)
    monkeypatch.setattr(launch.platform, "libc_ver", lambda: ("glibc", "2.36"))
    for text, settings in (
        ("always [madvise] never\n", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
        ("always madvise [never]\n", {}),
        (None, {}),
    ):
        pages.unlink(missing_ok=True)
        if text:
            pages.write_text(text)
        assert launch.machine_settings({}) == settings
    pages.write_text("[always] madvise never\n")
    for name, version in (("glibc", "2.31"), ("musl", "1.2"), ("", "")):
        monkeypatch.setattr(launch.platform, "libc_ver", lambda name=name, version=version: (name, version))
        assert launch.machine_settings({}) == {}
