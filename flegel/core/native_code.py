"""Machine code that numba made, kept in a file and called without numba. Compiles nothing.

numba takes a second of a processor to import and to read its tables; to link one of its object files takes 3 ms. The
object holds numba's own wrapper, which takes Python's arguments, checks dimensions and raises exceptions as ever. It
needs addresses of functions in three extension modules of numba; those are loaded alone, without the package. What a
caller must know is that types are not checked here: `entry_point` looks at them.

A file is read only from the private cache folder, and only where its digest is right: LLVM ends the process when an
object is damaged.
"""

from __future__ import annotations

import builtins
import ctypes
import hashlib
import json
import os
import platform
import struct
import sys
import types
from collections.abc import Callable
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flegel.loading.code_gate import installed_extension

NATIVE_CODE_HEADER = b"flegel native code 2\n"  # changes with the format
SYMBOL_PREFIXES_OF_EXTENSIONS = {
    "numba._helperlib": "numba_",
    "numba._dynfunc": "numba_",
    "numba.core.runtime._nrt_python": "NRT_",
}
"""Modules whose functions compiled code calls, and how their names begin there."""
PLAIN_CONSTANT_TYPES = (str, int, float, bool, type(None))
"""Kinds of constants that an environment may hold here, besides types of numpy."""
NUMBA_MODE_VARIABLES = ("NUMBA_DISABLE_JIT", "NUMBA_ENABLE_PROFILING")
VARIABLES_WITHOUT_EFFECT_ON_CODE = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_DEBUG_CACHE")
"""Settings of numba that do not change what is compiled."""
NOT_DEFINED, SYMBOL_TABLE = 0, 2  # numbers of the ELF format


class Environment(NamedTuple):
    """What numba calls an environment: constants of a function, which its code finds under this symbol."""

    name: str
    constants: tuple[Any, ...]


class NativeCode(NamedTuple):
    """An object file, the symbol of the function that Python calls, and all environments."""

    wrapper: str
    environments: tuple[Environment, ...]
    content: bytes


def is_possible() -> bool:
    """Objects are read as ELF; switches that change how numba runs are left to numba."""
    switched = any(os.environ.get(name, "0") not in ("", "0") for name in NUMBA_MODE_VARIABLES)
    return sys.platform == "linux" and sys.maxsize > 2**32 and not switched and not Path(".numba_config.yaml").exists()


@cache
def target() -> tuple[str, str]:
    """Name and features (`+avx2,-sve,…`) of the processor that numba compiles for: this one, or as it is set."""
    import llvmlite.binding as llvm

    name = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    chosen = os.environ.get("NUMBA_CPU_FEATURES", "" if name.lower() == "generic" else None)
    if chosen is not None:
        return name, chosen
    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:  # LLVM does not know this processor
        return name, ""
    if os.environ.get("NUMBA_ENABLE_AVX", "1") == "0":
        features.update({feature: False for feature in features if feature.startswith("avx")})
    return name, features.flatten()


@cache
def processor() -> str:
    """What code is compiled for: the processor, and all settings of numba that may change code."""
    settings = {
        k: v for k, v in os.environ.items() if k.startswith("NUMBA_") and k not in VARIABLES_WITHOUT_EFFECT_ON_CODE
    }
    return repr((platform.machine(), target(), sorted(settings.items())))


# -- files -------------------------------------------------------------------------------------------------


def encode(code: NativeCode) -> bytes | None:
    """The content of a file; None where the code needs something that `load` could not give it."""
    symbols = _symbols(code.content)
    if not symbols.get(code.wrapper) or not all(there or _is_known(name) for name, there in symbols.items()):
        return None
    used = tuple(e for e in code.environments if symbols.get(e.name))
    if not all(isinstance(value, (*PLAIN_CONSTANT_TYPES, np.dtype)) for e in used for value in e.constants):
        return None
    plain = [[e.name, [{"dtype": v.str} if isinstance(v, np.dtype) else v for v in e.constants]] for e in used]
    header = json.dumps([code.wrapper, plain]).encode()
    body = len(header).to_bytes(8, "little") + header + code.content
    return NATIVE_CODE_HEADER + hashlib.sha256(body).digest() + body


def decode(content: bytes) -> NativeCode | None:
    """None where the content is damaged, or of another version."""
    at = len(NATIVE_CODE_HEADER) + hashlib.sha256().digest_size
    if (
        not content.startswith(NATIVE_CODE_HEADER)
        or hashlib.sha256(content[at:]).digest() != content[len(NATIVE_CODE_HEADER) : at]
    ):
        return None
    end = at + 8 + int.from_bytes(content[at : at + 8], "little")
    try:
        wrapper, plain = json.loads(content[at + 8 : end])
        environments = [
            Environment(name, tuple(np.dtype(v["dtype"]) if isinstance(v, dict) else v for v in constants))
            for name, constants in plain
        ]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return NativeCode(wrapper, tuple(environments), content[end:])


def _symbols(content: bytes) -> dict[str, bool]:
    """Names of a 64-bit ELF object, and whether they are defined in it; nothing where it is none."""
    if content[:6] != b"\x7fELF\x02\x01":
        return {}
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count = struct.unpack_from("<HH", content, 0x3A)
    sections = [struct.unpack_from("<IIQQQQII", content, table + size * i) for i in range(count)]
    found: dict[str, bool] = {}
    for _, kind, _, _, start, length, link, _ in sections:
        if kind != SYMBOL_TABLE:
            continue
        names = sections[link][4]
        for at in range(start, start + length, 24):
            name, _, _, section = struct.unpack_from("<IBBH", content, at)
            text = content[names + name : content.index(b"\0", names + name)].decode()
            if text:
                found[text] = section != NOT_DEFINED
    return found


def _is_known(symbol: str) -> bool:
    return symbol in _helpers() or hasattr(ctypes.CDLL(None), symbol)


# -- linking -----------------------------------------------------------------------------------------------


@cache
def _extension(name: str) -> Any:
    """An extension module of numba, without the package around it; imported later, the package loads it again."""
    package = find_spec("numba")
    assert package is not None and package.submodule_search_locations
    if name in sys.modules:
        return sys.modules[name]
    stem = Path(package.submodule_search_locations[0]).joinpath(*name.split(".")[1:])
    path = next(p for suffix in EXTENSION_SUFFIXES if (p := stem.with_name(stem.name + suffix)).is_file())
    module = installed_extension(name, path)
    sys.modules.pop(name, None)
    return module


@cache
def _helpers() -> dict[str, int]:
    """Symbols that compiled code may refer to, besides those of the interpreter and the C library."""
    found = {"_Py_NoneStruct": id(None)}
    for name, prefix in SYMBOL_PREFIXES_OF_EXTENSIONS.items():
        for helper, address in _extension(name).c_helpers.items():
            internal = prefix == "NRT_" and helper.startswith("_")
            found[helper if internal else prefix + helper] = address
    errors = (value for value in vars(builtins).values() if isinstance(value, type))
    return found | {f"PyExc_{e.__name__}": id(e) for e in errors if issubclass(e, BaseException)}


@cache
def _prepare_linker() -> None:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for symbol, address in _helpers().items():
        llvm.add_symbol(symbol, address)


def link(code: NativeCode, name: str) -> Callable[..., Any]:
    """The function as Python calls it. It stays until the process ends, since a thread may be in it."""
    import llvmlite.binding as llvm

    _prepare_linker()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.content))
    engine.finalize_object()
    functions = _extension("numba._dynfunc")
    kept = []
    for symbol, constants in code.environments:
        environment = functions.Environment({})
        environment.consts[:] = constants
        kept.append(environment)
        ctypes.c_void_p.from_address(engine.get_global_value_address(symbol)).value = id(environment)
    address = engine.get_function_address(code.wrapper)
    engine.detach()
    text = "machine code of numba"
    linked: Callable[..., Any] = functions.make_function(
        types.ModuleType(name), name, text, address, kept[0], tuple(kept)
    )
    return linked
