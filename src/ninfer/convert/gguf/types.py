"""The type tables of GGUF: metadata value types and tensor types with their block sizes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

STRING: Final = 8
ARRAY: Final = 9
BOOL: Final = 7

# Fixed-size metadata values: type id -> (name, little-endian decoder).
SCALARS: Final[dict[int, tuple[str, struct.Struct]]] = {
    0: ("UINT8", struct.Struct("<B")),
    1: ("INT8", struct.Struct("<b")),
    2: ("UINT16", struct.Struct("<H")),
    3: ("INT16", struct.Struct("<h")),
    4: ("UINT32", struct.Struct("<I")),
    5: ("INT32", struct.Struct("<i")),
    6: ("FLOAT32", struct.Struct("<f")),
    BOOL: ("BOOL", struct.Struct("<B")),
    10: ("UINT64", struct.Struct("<Q")),
    11: ("INT64", struct.Struct("<q")),
    12: ("FLOAT64", struct.Struct("<d")),
}


@dataclass(frozen=True)
class TensorType:
    """One way of storing tensor elements: `block_bytes` bytes hold `block_elems` consecutive elements of a row."""

    id: int
    name: str
    block_elems: int
    block_bytes: int


# Every id that a file may legally hold, importable or not, so that any tensor can be sized and named.
_TABLE: Final = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
)

TENSOR_TYPES: Final[dict[int, TensorType]] = {row[0]: TensorType(*row) for row in _TABLE}
REMOVED_TYPE_IDS: Final = frozenset({4, 5, 31, 32, 33, 36, 37, 38})
