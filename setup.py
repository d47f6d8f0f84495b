"""Builds the C extension: all files at once, and after a change only those that it concerns."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "native"))
from build_ffi import WARNING_FLAGS


class BuildNative(build_ext):
    """Compiles the rooms' C files in parallel, with all warnings as errors.

    setuptools compiles one file after the other and all of them whenever one is newer than the
    extension.  Here each object has a `.d` file of the headers that it was made from (gcc -MMD).
    """

    def build_extension(self, ext: Extension) -> None:
        generated, written = ext.sources[:1], ext.sources[1:]
        flags = [*(ext.extra_compile_args or []), "-MMD"]
        # Objects of other flags (a sanitizer, a new option here) are other objects.
        identity = hashlib.sha256(repr((flags, ext.define_macros)).encode()).hexdigest()[:12]
        object_dir = os.path.join("build", "native", identity)
        os.makedirs(object_dir, exist_ok=True)
        # pip builds an editable install in a folder that it throws away; what lies here is found
        # again by the next build.
        kept = Path("build", "native", Path(generated[0]).name)
        text = Path(generated[0]).read_text()
        if not kept.exists() or kept.read_text() != text:
            kept.write_text(text)
        jobs = [(str(kept), flags)]
        jobs += [(source, [*flags, *WARNING_FLAGS]) for source in written]

        def compile_one(job: tuple[str, list[str]]) -> str:
            source, source_flags = job
            (target,) = self.compiler.object_filenames([source], output_dir=object_dir)
            if self.force or _is_stale(target):
                self.compiler.compile(
                    [source],
                    output_dir=object_dir,
                    macros=ext.define_macros,
                    include_dirs=ext.include_dirs,
                    extra_postargs=source_flags,
                )
                self._compiled = True
            return target

        self._compiled = False
        with ThreadPoolExecutor(self.parallel or os.cpu_count() or 1) as pool:
            objects = list(pool.map(compile_one, jobs))
        # What that very extension was linked from last: in place and in a wheel it may differ.
        target_name = hashlib.sha256(self.get_ext_fullpath(ext.name).encode()).hexdigest()[:12]
        stamp = Path("build", "native", f"linked-{target_name}")
        linked = stamp.read_text() if stamp.exists() else ""
        inputs = "\n".join(objects)
        force, self.force = self.force, self.force or self._compiled or linked != inputs
        # What is left for setuptools is to link the objects under the right name.
        ext.sources, ext.depends, ext.extra_objects = [], objects, objects
        try:
            super().build_extension(ext)
        finally:
            ext.sources, self.force = [*generated, *written], force
        stamp.write_text(inputs)


def _is_stale(target: str) -> bool:
    """Say whether an object is older than something that it was made from."""
    dependencies = Path(target).with_suffix(".d")
    try:
        made_ns = os.stat(target).st_mtime_ns
        text = dependencies.read_text().replace("\\\n", " ").split(":", 1)[1]
        return any(os.stat(path).st_mtime_ns >= made_ns for path in re.findall(r"\S+", text))
    except (OSError, IndexError):
        return True


setup(
    cffi_modules=["native/build_ffi.py:ffi"],
    cmdclass={"build_ext": BuildNative},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
