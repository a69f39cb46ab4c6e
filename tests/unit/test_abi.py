"""The ctypes mirror of hdp.h is the header: names, order and types of fields, values, functions."""

import ctypes
import re
from pathlib import Path

import pytest

from hdp.collectives import library

HEADER = (Path(__file__).parents[2] / "runtime/csrc/include/hdp.h").read_text()
CODE = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)
TYPES = {
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "const void *": ctypes.c_void_p,
    "void *": ctypes.c_void_p,
    "const char *": ctypes.c_char_p,
    "const uint64_t *": ctypes.POINTER(ctypes.c_uint64),
    "const uint8_t *": ctypes.POINTER(ctypes.c_uint8),
    "hdp_log_function": library.LogFunction,
    "const int32_t *": ctypes.POINTER(ctypes.c_int32),
    "const char *const *": ctypes.POINTER(ctypes.c_char_p),
    "struct hdp_layout": library.Layout,
}


def _fields(struct):
    body = re.search(rf"struct {struct} \{{(.*?)\}};", CODE, re.DOTALL).group(1)
    return [(name, TYPES[" ".join(kind.split())]) for kind, name in re.findall(r"([\w\s*]+?[\s*])(\w+);", body)]


@pytest.mark.parametrize(
    ("struct", "mirror"),
    [
        ("hdp_request", library.Request),
        ("hdp_layout", library.Layout),
        ("hdp_server_config", library.ServerConfig),
    ],
)
def test_structures(struct, mirror):
    assert [tuple(f) for f in mirror._fields_] == _fields(struct)


@pytest.mark.parametrize(
    ("enum", "mirror"),
    [
        ("hdp_status", library.Status),
        ("hdp_kind", library.Kind),
        ("hdp_dtype", library.DType),
        ("hdp_op", library.ReduceOp),
    ],
)
def test_enumerations(enum, mirror):
    body = re.search(rf"enum {enum} \{{(.*?)\}};", CODE, re.DOTALL).group(1)
    assert [(m.name, m.value) for m in mirror] == [
        (name, int(value)) for name, value in re.findall(r"HDP_(\w+) = (\d+)", body)
    ]


def test_functions():
    declared = re.findall(r"HDP_API [\w\s*]+?[\s*](\w+)\(([^;]*)\);", CODE)
    counts = {name: 0 if arguments.strip() == "void" else arguments.count(",") + 1 for name, arguments in declared}
    assert counts == {name: len(arguments) for name, (_, arguments) in library.SIGNATURES.items()}


def test_version():
    assert f"#define HDP_ABI_VERSION {library.ABI_VERSION}\n" in HEADER
    assert library.load().hdp_abi_version() == library.ABI_VERSION


def test_every_error_status_has_an_exception():
    """All statuses but OK and PENDING are translated."""
    assert set(library._EXCEPTIONS) == set(library.Status) - {library.Status.OK, library.Status.PENDING}


def test_one_copy_in_a_process():
    """Loading twice maps the library once (DESIGN I8)."""
    library.load()
    library.load.cache_clear()
    library.load()
    maps = Path("/proc/self/maps").read_text()
    assert len({line.split()[-1] for line in maps.splitlines() if "libhdp_core" in line}) == 1
