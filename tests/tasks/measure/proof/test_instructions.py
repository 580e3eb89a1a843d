from __future__ import annotations

import ctypes
import mmap
import platform
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from storage.errors import UnavailableError
from tasks.data.outputs import intra_op_threads
from tasks.measure.proof.instructions import Disassembler, Family, Sampler

needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="this is about instructions of x86-64")

# Assembled by hand from Intel's manual, volume 2.
ARITHMETIC: dict[str, tuple[Family, str]] = {
    "tdpbusd tmm0, tmm1, tmm2": ("amx-int8", "c4e2695ec1"),
    "tdpbf16ps tmm0, tmm1, tmm2": ("amx-bfloat16", "c4e26a5cc1"),
    "vpdpbusd zmm0, zmm1, zmm2": ("vnni", "62f2754850c2"),
    "vpdpbusd ymm0, ymm1, ymm2 of AVX-VNNI": ("vnni", "c4e27550c2"),
    "vpmaddubsw ymm0, ymm1, ymm2": ("avx2-int8", "c4e27504c2"),
    "vpmaddwd ymm0, ymm1, ymm2": ("avx2-int16", "c5f5f5c2"),
    "vdpbf16ps zmm0, zmm1, zmm2": ("avx512-bfloat16", "62f2764852c2"),
    "vfmadd231ps ymm0, ymm1, ymm2": ("float", "c4e275b8c2"),
    "add eax, 1": ("other", "83c001"),
}
TILE_LOAD = "c4e27b4b0418"  # tileloadd tmm0, [rax + rbx]
DECREMENT, RETURN = "ffc9", "c3"


@pytest.fixture
def code() -> Iterator[mmap.mmap]:
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    yield memory
    memory.close()


def put(memory: mmap.mmap, *instructions: str) -> list[int]:
    """Write instructions; their addresses."""
    start, offset, found = ctypes.addressof(ctypes.c_char.from_buffer(memory)), 0, []
    for text in instructions:
        machine_code = bytes.fromhex(text)
        memory[offset : offset + len(machine_code)] = machine_code
        found.append(start + offset)
        offset += len(machine_code)
    return found


def jump_back(*over: str) -> str:
    """A conditional jump to before these instructions."""
    return "75" + (256 - 2 - sum(len(text) // 2 for text in over)).to_bytes(1, "little").hex()


@needs_x86
@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.slow
def test_a_counter_anywhere_in_a_loop_belongs_to_the_loops_arithmetic(code: mmap.mmap, name: str) -> None:
    family, product = ARITHMETIC[name]
    body = (TILE_LOAD, product, DECREMENT)
    addresses = put(code, *body, jump_back(*body), RETURN)
    assert Disassembler().families(addresses[:4]) == {family: 4}


@needs_x86
def test_products_take_precedence_over_the_instructions_after_them(code: mmap.mmap) -> None:
    body = (ARITHMETIC["vpdpbusd zmm0, zmm1, zmm2"][1], ARITHMETIC["vfmadd231ps ymm0, ymm1, ymm2"][1])
    first, *_ = put(code, *body, jump_back(*body))
    assert Disassembler().families([first, first]) == {"vnni": 2}


@needs_x86
def test_a_loop_that_rounds_and_packs_quantizes_and_one_that_rounds_alone_is_float(code: mmap.mmap) -> None:
    multiplies, rounds, packs = ARITHMETIC["vfmadd231ps ymm0, ymm1, ymm2"][1], "c5fd5bc1", "c5f567c2"
    for body, family in (((multiplies, rounds, packs), "quantize"), ((multiplies, rounds), "float")):
        first, *_ = put(code, *body, jump_back(*body), RETURN)
        assert Disassembler().families([first]) == {family: 1}


@pytest.fixture
def sampler():
    try:
        return Sampler()
    except UnavailableError as error:
        pytest.skip(error.message)


@pytest.mark.slow
def test_the_sampler_counts_code_between_start_and_stop(sampler: Sampler) -> None:
    def multiply(seconds: float) -> None:
        left, right = torch.randn(256, 256), torch.randn(256, 256)
        until = time.thread_time() + seconds  # of a processor, however many others want it
        while time.thread_time() < until:
            left @ right

    with intra_op_threads(1):  # others would spin while they wait
        sampler.start()
        multiply(0.3)
        found = Disassembler().families(sampler.stop())
        multiply(0.05)
    assert found.total() > 100
    assert found["float"] > 0.3 * found.total()
    sampler.start()
    assert len(sampler.stop()) < 100


@pytest.mark.slow
def test_threads_that_start_later_are_sampled(sampler: Sampler) -> None:
    sampler.start()
    product = torch.randn(400, 400)
    worker = threading.Thread(target=lambda: [product @ product for _ in range(200)])
    worker.start()
    worker.join()  # this thread sleeps
    assert Disassembler().families(sampler.stop())["float"] > 20
