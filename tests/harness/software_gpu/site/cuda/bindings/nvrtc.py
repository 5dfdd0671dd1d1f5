"""NVRTC's calls, answered by the host's C++ compiler: kernels for the software GPU.

A source is compiled with checks of every access (`device/checks.cpp`), behind `kernel/kernel.h`, and the
"machine code" is the path of the library, which the device opens. Libraries are kept by the digest of source
and headers, beside the source that reports name lines of.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import os
import re
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(os.environ["SOFTWARE_GPU"])
"""Where the device was built; kernels are kept there, too."""

_MAGIC = b"software-gpu:"
_STATIC_SHARED_BYTES = 48 << 10

_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\((?P<bounds>\d+)[^)]*\)\s+)?(?P<name>\w+)\s*'
    r"\((?P<parameters>[^)]*)\)\s*\{"
)
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:(?:__align__|alignas)\(\d+\)\s+)?([^;]*?)(\w+)\s*\[\s*\]\s*;"
)
_STATIC = re.compile(
    r"(?<!extern )__shared__\s+((?:__align__|alignas)\(\d+\)\s+)?([\w:<>, ]+?)\s+(\w+)((?:\[[^\]]+\])*)\s*;"
)
_WAITING = re.compile(r"__sync|__shfl|__activemask|__any|__all_|__ballot|wmma|gpu_mma|gpu_ldmatrix|volatile")

_HALF4 = re.compile(r"struct __align__\(8\) (half4_bfloat164) \{(?=\n)")
_COPIED_AT_ONCE = (
    r"\g<0> __device__ \1(const \1& other) { *this = other; } "
    r"__device__ \1& operator=(const \1& other) "
    r"{ *(uint64_t*)this = *(const uint64_t*)&other; return *this; }"
)
"""TVM's vector of four small numbers, whose copy is one access."""

_ASSEMBLY = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
_ELEMENTS = {
    "f16": "half",
    "bf16": "__nv_bfloat16",
    "s8": "int8_t",
    "u8": "uint8_t",
    "e4m3": "__nv_fp8_e4m3",
    "e5m2": "__nv_fp8_e5m2",
    "f32": "float",
    "s32": "int",
}
"""Of fragments, in C++."""

_GIVEN = "|".join(each for each in _ELEMENTS if not each.endswith("32"))
_INSTRUCTIONS = {
    r"cp\.async\.c[ag]\.shared\.global": "gpu_copy_async",
    r"cp\.async\.commit_group": "gpu_commit_copies",
    r"cp\.async\.wait_group (?P<left>\d+)": "gpu_wait_copies",
    r"ldmatrix\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<trans>\.trans)?\.shared\.b16": "gpu_ldmatrix",
    r"mma\.sync\.aligned\.m16n8k(?P<k>\d+)\.row\.col\.(?P<d>f16|f32|s32)"
    rf"\.(?P<a>{_GIVEN})\.(?P<b>{_GIVEN})\.(?P=d)": "gpu_mma",
    r"dp4a\.(?P<a>[us])32\.(?P<b>[us])32": "gpu_dp4a",
}
"""Inline assembly that is known, and what `kernel/ptx.h` has for it. TVM 0.27 writes more, such as `wgmma`,
which neither DLight's nor MetaSchedule's schedules take."""


class nvrtcResult(enum.IntEnum):
    NVRTC_SUCCESS = 0
    NVRTC_ERROR_COMPILATION = 6


@dataclass(slots=True)
class _Program:
    source: str
    log: bytes = b""
    code: bytes = b""


_OK = nvrtcResult.NVRTC_SUCCESS
_numbers = itertools.count(1)
_programs: dict[int, _Program] = {}


def nvrtcVersion():
    return _OK, 13, 0


def nvrtcGetErrorString(result):
    return _OK, nvrtcResult(result).name.encode()


def nvrtcCreateProgram(source, name, num_headers, headers, include_names):
    number = next(_numbers)
    _programs[number] = _Program(source.decode())
    return _OK, number


def nvrtcCompileProgram(number, num_options, options):
    program = _programs[number]
    try:
        program.code = _MAGIC + bytes(_compiled(program.source)) + b"\0"
    except (subprocess.CalledProcessError, ValueError) as error:
        stderr = getattr(error, "stderr", None)
        program.log = stderr or str(error).encode()
        return (nvrtcResult.NVRTC_ERROR_COMPILATION,)
    return (_OK,)


def nvrtcGetProgramLogSize(number):
    return _OK, len(_programs[number].log)


def nvrtcGetProgramLog(number, buffer):
    buffer[:] = _programs[number].log
    return (_OK,)


def nvrtcGetCUBINSize(number):
    return _OK, len(_programs[number].code)


def nvrtcGetCUBIN(number, buffer):
    buffer[:] = _programs[number].code
    return (_OK,)


nvrtcGetPTXSize, nvrtcGetPTX = nvrtcGetCUBINSize, nvrtcGetCUBIN


def nvrtcDestroyProgram(number):
    del _programs[number]
    return (_OK,)


def _compiled(source: str) -> Path:
    """Return the library of a source's kernels."""
    digest = hashlib.sha256((FOLDER / "kernels-version").read_bytes() + source.encode()).hexdigest()[:24]
    library = FOLDER / "kernels" / f"{digest}.so"
    if library.exists():
        return library
    named = library.with_suffix(".cu")
    partial = library.with_suffix(f".{os.getpid()}")
    given, code, linked = (partial.with_suffix(f".{os.getpid()}.{end}") for end in ("cpp", "o", "so"))
    given.write_text(translated(source, named))
    begin_s = _children_s()
    try:
        command, libraries = ((FOLDER / name).read_text().split("\n") for name in ("compile", "libraries"))
        subprocess.run([*command, "-c", given, "-o", code], check=True, capture_output=True)
        # With -fsanitize g++ would link its own library, and be ready in six times as long.
        subprocess.run(["ld", "-shared", code, *libraries, "-o", linked], check=True, capture_output=True)
        named.write_text(source)
        linked.replace(library)
        with (FOLDER / "compilations").open("a") as file:
            file.write(f"{_children_s() - begin_s:.3f}\n")
    finally:
        given.unlink()
        code.unlink(missing_ok=True)
    return library


def _children_s() -> float:
    """Return the processor time of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def translated(source: str, named: Path) -> str:
    """Return a source as the host's compiler takes it, its lines numbered as in the file that is named.

    Raises:
        ValueError: it has unknown instructions.
    """
    source, headers = _with_calls(source)
    found = list(_KERNEL.finditer(source))
    ends = [each.start() for each in found[1:]] + [len(source)]
    bodies = [source[each.start() : end] for each, end in zip(found, ends, strict=True)]
    entries = [_entry(each, body) for each, body in zip(found, bodies, strict=True)]
    text = _HALF4.sub(_COPIED_AT_ONCE, source)
    text = _DYNAMIC.sub(r"\1* \2 = (\1*)gpu_dynamic_shared();", text)
    text = _STATIC.sub(_shared_bytes, text)
    return f'{headers}#line 1 "{named}"\n{text}\n#line 1 "entries"\n' + "\n".join(entries)


def _with_calls(source: str) -> tuple[str, str]:
    """Return a source with calls in place of inline assembly, and the headers that it needs."""
    found, done = "", 0
    for each in _ASSEMBLY.finditer(source):
        statement = next(_pieces(source[each.end() :], ")"))
        template, *operands = _pieces(statement, ":")
        text = "".join(re.findall(r'"([^"]*)"', template))
        outs, given = (_expressions(section) for section in (*operands, "", "")[:2])
        lines = "\n" * statement.count("\n")
        found += source[done : each.start()] + _call(text, outs, given) + lines
        done = each.end() + len(statement) + 1
    headers = '#include "kernel.h"\n' + ('#include "ptx.h"\n' if done else "")
    return found + source[done:], headers


def _call(text: str, outs: list[str], given: list[str]) -> str:
    """Return the call of an instruction.

    Raises:
        ValueError: it is not known.
    """
    matches = ((re.search(pattern + r"\b", text), name) for pattern, name in _INSTRUCTIONS.items())
    found, name = next(((match, name) for match, name in matches if match), (None, ""))
    if found is None:
        words = re.search(r"[\w.:]+\.[\w.:]+|\w+", text)
        raise ValueError(f"error: the software GPU does not know the instruction {words and words[0]!r}")
    parts = found.groupdict()
    if not outs:
        return f"{name}({', '.join([*given, *parts.values()])})"
    if name == "gpu_ldmatrix":
        kinds = [parts["count"], str(parts["trans"] is not None).lower()]
    elif name == "gpu_dp4a":
        kinds = [_ELEMENTS[f"{parts[each]}8"] for each in "ab"]
    else:
        kinds = [parts["k"], *(_ELEMENTS[parts[each]] for each in "abd")]
    taken = ", ".join(f"gpu_bits({each})" for each in given)
    sets = "".join(f" gpu_set({each}, gpu_out[{number}]);" for number, each in enumerate(outs))
    called = f"{name}<{', '.join(kinds)}>(gpu_out, gpu_in);"
    return f"{{ uint32_t gpu_in[] = {{{taken}}}, gpu_out[{len(outs)}]; {called}{sets} }}"


def _expressions(section: str) -> list[str]:
    """Return the expressions of an assembly's operands."""
    return [re.sub(r'^\s*"[^"]*"', "", each).strip() for each in _pieces(section, ",") if each.strip()]


def _pieces(text: str, separator: str) -> Iterator[str]:
    """Return what lies between separators that are in no text and in no parentheses."""
    depth, begin, is_quoted = 0, 0, False
    for at, character in enumerate(text):
        if character == separator and not depth and not is_quoted:
            yield text[begin:at]
            begin = at + 1
        is_quoted ^= character == '"'
        if not is_quoted:
            depth += (character in "([{") - (character in ")]}")
    yield text[begin:]


def _shared_bytes(found: re.Match[str]) -> str:
    """Return a declaration of shared memory as plain bytes, which no constructor writes."""
    alignment, element, name, extents = found.groups()
    kind = f"gpu_identity<{element}{extents}>::type"
    return (
        f"{alignment or ''}alignas({element}) __shared__ unsigned char {name}__bytes[sizeof({kind})]; "
        f"{kind}& {name} = *({kind}*){name}__bytes;"
    )


def _entry(found: re.Match[str], body: str) -> str:
    """Return what the device needs to launch a kernel."""
    name = found["name"]
    types = [
        re.sub(r"\w+\s*$", "", re.sub(r"__restrict__|__grid_constant__", "", each).strip()).strip()
        for each in found["parameters"].split(",")
        if each.strip()
    ]
    arguments = ", ".join(f"*({each}*)p[{number}]" for number, each in enumerate(types))
    sizes = ", ".join(["0", *(f"sizeof({each})" for each in types)])
    shared = " + ".join(["0", *(f"sizeof({each[2]}{each[4]})" for each in _STATIC.finditer(body))])
    shared = re.sub(r"sizeof\(([\w:<>, ]+?)((?:\[[^\]]*\])+)\)", r"sizeof(gpu_identity<\1\2>::type)", shared)
    waits = int(_WAITING.search(body) is not None)
    return (
        f"GPU_UNCHECKED void {name}__call(void** p) {{ {name}({arguments}); }}\n"
        f"static const unsigned {name}__sizes[] = {{{sizes}}};\n"
        f'static_assert({shared} <= {_STATIC_SHARED_BYTES}, "{name} declares too much shared memory");\n'
        f"GPU_EXPORTED const gpu_kernel_entry {name}__entry = "
        f'{{{name}__call, "{name}", {name}__sizes + 1, {len(types)}, {found["bounds"] or 0}, '
        f"{shared}, {waits}, "
        "&__ehdr_start, &_end, &__start_gpu_shared, &__stop_gpu_shared};\n"
    )
