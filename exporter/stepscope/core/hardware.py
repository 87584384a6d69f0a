"""GPU data sheet figures and the search for one by the name that an operator, a driver or Kubernetes gives it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepscope.errors import FactError

GIGA = 1e9  # data sheets count bytes in decimal
TERA = 1e12
MAX_NAMES_SHOWN = 4
# Words that vendors put before a product name ("NVIDIA GeForce RTX 4090", "Tesla V100-SXM2-32GB").
VENDOR_WORDS = re.compile(r"^(nvidia|amd|instinct|geforce|tesla|quadro)+")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a kind. Bandwidth in bytes/s, FLOP/s dense (without sparsity), memory in bytes; `source` per row.

    peak_flops: bf16 (fp16 where there is no bf16). fp8_flops: None where the GPU has no fp8 units.
    """

    name: str
    peak_bandwidth_bytes_per_second: float
    peak_flops: float
    fp8_flops: float | None
    memory_bytes: float
    source: str
    aliases: tuple[str, ...] = ()


def normal_name(name: str) -> str:
    """A name without case, separators and vendor words: "NVIDIA H100 80GB HBM3" and "h100-80gb-hbm3" become one."""
    return VENDOR_WORDS.sub("", re.sub(r"[^a-z0-9]", "", name.lower()))


def _positive(row: Mapping[str, object], key: str, where: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise FactError(f"{where}: {key} must be a positive number")
    return float(value)


def read_gpus(rows: Sequence[object], where: str) -> tuple[Gpu, ...]:
    """GPUs from the rows of a table. Raises FactError naming the row and the key, or two rows that share a name."""
    gpus: list[Gpu] = []
    taken: dict[str, str] = {}
    for number, row in enumerate(rows):
        name = row.get("name") if isinstance(row, Mapping) else None
        if not isinstance(row, Mapping) or not isinstance(name, str) or not normal_name(name):
            raise FactError(f"{where}: row {number} has no name")
        at = f"{where}: {name}"
        source, aliases = row.get("source"), row.get("aliases", [])
        if not isinstance(source, str) or not source:
            raise FactError(f"{at}: source is missing")
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise FactError(f"{at}: aliases must be a list of names")
        has_fp8 = row.get("fp8_dense_teraflops") is not None
        gpus.append(
            Gpu(
                name=name,
                peak_bandwidth_bytes_per_second=_positive(row, "peak_bandwidth_gigabytes_per_second", at) * GIGA,
                peak_flops=_positive(row, "bf16_dense_teraflops", at) * TERA,
                fp8_flops=_positive(row, "fp8_dense_teraflops", at) * TERA if has_fp8 else None,
                memory_bytes=_positive(row, "memory_gigabytes", at) * GIGA,
                source=source,
                aliases=tuple(aliases),
            )
        )
        for spelling in {normal_name(alias) for alias in (name, *aliases)}:
            if taken.setdefault(spelling, name) != name:
                raise FactError(f"{at}: the name {spelling} is also {taken[spelling]}'s")
    return tuple(gpus)


def find_gpu(name: str, gpus: Sequence[Gpu]) -> Gpu:
    """The GPU of a name or alias, whatever the case and separators.

    Raises FactError: for a name that several GPUs begin with ("A100") the choices, else the nearest names.
    """
    wanted = normal_name(name)
    spellings = {normal_name(alias): gpu for gpu in gpus for alias in (gpu.name, *gpu.aliases)}
    if wanted in spellings:
        return spellings[wanted]
    choices = list(dict.fromkeys(gpu.name for key, gpu in spellings.items() if wanted and key.startswith(wanted)))
    if len(choices) > 1:
        raise FactError(f"GPU {name[:60]!r} could be {', '.join(choices)}: say which")
    near = choices or [spellings[key].name for key in difflib.get_close_matches(wanted[:60], spellings, 12, 0.5)]
    nearest = ", ".join(list(dict.fromkeys(near))[:MAX_NAMES_SHOWN])
    hint = f"nearest: {nearest}" if nearest else f"known: {', '.join(gpu.name for gpu in gpus)}"
    raise FactError(f"GPU {name[:60]!r} is not in the table; {hint}")
