"""The fake GPU of fake_gpu.cc: built for a Python's TensorFlow, and loaded by the ranks that are told so."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

SOURCE = Path(__file__).with_suffix(".cc")


def build(folder, python=sys.executable):
    """Compile it into `folder`. Returns the environment variable by which `use` finds it."""
    where = [python, "-c", "import importlib.util as u; print(u.find_spec('tensorflow').submodule_search_locations[0])"]
    package = subprocess.run(where, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    library = Path(folder) / "libfake_gpu.so"
    ours = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-I{package}/include", str(SOURCE), "-o", str(library)]
    theirs = [str(found) for name in ("framework", "cc") for found in Path(package).glob(f"libtensorflow_{name}.so.2")]
    command = ["c++", *ours, "-Wl,--no-as-needed", *theirs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {"FAKE_GPU": str(library)}


def use():
    """Give this process's TensorFlow the fake GPU, if there is one. Returns the library, or None."""
    path = os.environ.get("FAKE_GPU")
    if not path:
        return None
    from tensorflow.python.framework import load_library  # the one public way is to install a plugin

    load_library.load_pluggable_device_library(path)
    assert tf.config.list_physical_devices("GPU"), "TensorFlow doesn't see the fake GPU"
    assert tf.Variable(1.0).device.endswith("GPU:0"), "a variable isn't on the fake GPU"
    library = ctypes.CDLL(path)
    for count in (library.fake_gpu_copies_to_host, library.fake_gpu_copies_to_device):
        count.restype = ctypes.c_uint64
    return library
