"""int8 Linear, LSTM and Embedding against the arithmetic in plain torch, on every instruction set of the machine."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim, export

from tasks.domains.language_model.domain import WordLanguageModel
from tasks.quantize.int8_modules import (
    Int8Embedding,
    Int8Linear,
    Int8Lstm,
    PerRowConverter,
    align_for_aot_inductor,
    quantize_rows,
)
from tests.tasks.quantize.int8_reference import SETS, cell_of, instruction_set, linear_of, runs_here, supported_sets

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operators_loaded")]

sizes = st.integers(1, 150)


def drawn(seed: int, *shape: int) -> Tensor:
    """Rows whose ranges differ by orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    return values * 10.0 ** torch.randint(-3, 4, (*shape[:-1], 1), generator=generator)


def linear(seed: int, inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(inputs, outputs, bias=bias)


def lstm(seed: int, inputs: int, hidden: int, layers: int, *, bias: bool = True, batch_first: bool = False) -> nn.LSTM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.LSTM(inputs, hidden, layers, bias=bias, batch_first=batch_first).eval()


def state(seed: int, model: nn.LSTM, batch: int) -> tuple[Tensor, Tensor]:
    shape = model.num_layers, batch, model.hidden_size
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) * 2 - 1, torch.randn(shape, generator=generator)


def flat(result: tuple[Tensor, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    return result[0], *result[1]


@settings(max_examples=40)
@given(rows=st.integers(1, 70), inputs=sizes, outputs=sizes, seed=st.integers(0, 1000))
def test_a_linear_layer_agrees_with_the_reference_bit_for_bit(rows: int, inputs: int, outputs: int, seed: int) -> None:
    layer, x = linear(seed, inputs, outputs), drawn(seed, rows, inputs)
    expected = linear_of(x, quantize_rows(layer.weight), layer.bias.detach())
    quantized = Int8Linear(layer)
    for name in supported_sets():
        with instruction_set(name):
            assert torch.equal(quantized(x), expected), name


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_features_and_weights_at_the_ends_of_their_ranges_do_not_saturate(rows: int) -> None:
    layer, generator = linear(0, 600, 70), torch.Generator().manual_seed(rows)
    x = torch.randint(-1, 2, (rows, 600), generator=generator).float()  # becomes -127, 0 and 127
    with torch.no_grad():
        layer.weight.copy_(layer.weight.sign() * 0.1)
        layer.weight[::2].abs_()
    x[:, 100:300] = 1  # neighbours of equal sign, the worst case
    expected = linear_of(x, quantize_rows(layer.weight), layer.bias.detach())
    for name in supported_sets():
        with instruction_set(name):
            assert torch.equal(Int8Linear(layer)(x), expected), name


# A value that lies between two steps, to a last digit, is rounded to either: all of its row then moves a little.
MOST_ROWS_AT_HALF_A_STEP, A_STEP = 1, 1e-3


@settings(max_examples=25)
@given(
    steps=st.integers(1, 5),
    batch=st.sampled_from([1, 2, 3, 17, 70]),
    inputs=sizes,
    hidden=st.integers(1, 90),
    layers=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_every_cell_of_an_lstm_agrees_with_the_reference(
    steps: int, batch: int, inputs: int, hidden: int, layers: int, seed: int
) -> None:
    model = lstm(seed, inputs, hidden, layers)
    quantized = Int8Lstm(model)
    before = state(seed, model, batch)
    for x in drawn(seed, steps, batch, inputs):
        outputs, (h, c) = quantized(x.unsqueeze(0), before)
        assert torch.equal(outputs[0], h[-1])
        below = x
        for layer in range(layers):
            # From the operator's own state before: a difference in a last digit might move a row by a step.
            expected = cell_of(below, before[0][layer], before[1][layer], model, layer)
            for actual, of_arithmetic in zip((h[layer], c[layer]), expected, strict=True):
                off = (actual - of_arithmetic).abs().amax(1)
                assert (off > 2e-6 * (1 + of_arithmetic.abs().amax(1))).sum() <= MOST_ROWS_AT_HALF_A_STEP
                assert off.max() < A_STEP
            below = h[layer]
        before = h, c


@settings(max_examples=25)
@given(
    steps=st.integers(1, 80),
    batch=st.sampled_from([1, 2, 18]),
    inputs=sizes,
    hidden=st.integers(1, 70),
    layers=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_many_steps_are_single_steps_and_rows_together_are_rows_alone_on_every_instruction_set(
    steps: int, batch: int, inputs: int, hidden: int, layers: int, seed: int
) -> None:
    model = lstm(seed, inputs, hidden, layers)
    quantized, x, before = Int8Lstm(model), drawn(seed, steps, batch, inputs), state(seed, model, batch)
    together = flat(quantized(x, before))
    carried, outputs = before, []
    for step in x:
        output, carried = quantized(step.unsqueeze(0), carried)
        outputs.append(output[0])
    assert all(map(torch.equal, together, (torch.stack(outputs), *carried)))
    for row in range(batch):
        alone = flat(quantized(x[:, row : row + 1], tuple(each[:, row : row + 1] for each in before)))
        assert all(torch.equal(each[:, row : row + 1], one) for each, one in zip(together, alone, strict=True))
    for name in supported_sets():
        with instruction_set(name):
            assert all(map(torch.equal, together, flat(quantized(x, before)))), name


@pytest.mark.parametrize("name", SETS)
@pytest.mark.slow
def test_gates_are_right_over_their_complete_range(name: str) -> None:
    if not runs_here(name):
        pytest.skip(f"the processor has no {name}")
    model = lstm(0, 3, 64, 1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.weight_ih_l0.zero_()
        model.weight_hh_l0.zero_()
        model.bias_ih_l0.zero_()
        # Gates from one end of float32 to the other, most of them where they bend.
        model.bias_hh_l0.copy_(torch.randn(256, generator=generator) * 10)
        model.bias_hh_l0[::17] *= 1e30
    c = torch.randn(1, 1, 64, generator=generator) * 3
    with instruction_set(name):
        _, (h_after, c_after) = Int8Lstm(model)(torch.ones(1, 1, 3), (torch.zeros_like(c), c))
    h_expected, c_expected = cell_of(torch.ones(1, 3), torch.zeros(1, 64), c[0], model, 0)
    torch.testing.assert_close(c_after[0], c_expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(h_after[0], h_expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", SETS)
@pytest.mark.slow
def test_a_row_that_is_not_finite_spoils_itself_only(name: str, bad: float) -> None:
    if not runs_here(name):
        pytest.skip(f"the processor has no {name}")
    with instruction_set(name):
        layer, x = Int8Linear(linear(0, 70, 33)), drawn(0, 5, 70)
        before = layer(x)
        x[2, 69] = bad
        after = layer(x)
        assert not after[2].isfinite().any()
        x, model = drawn(0, 4, 3, 20), lstm(0, 20, 17, 2)
        quantized = Int8Lstm(model)
        expected = flat(quantized(x, state(0, model, 3)))
        x[1, 0, 5] = bad
        found = flat(quantized(x, state(0, model, 3)))
    rest = [0, 1, 3, 4]
    assert torch.equal(after[rest], before[rest])
    assert not found[0][1:, 0].isfinite().any()
    assert torch.equal(found[0][0], expected[0][0])
    assert all(torch.equal(a[:, 1:], b[:, 1:]) for a, b in zip(found, expected, strict=True))


def test_an_lstm_is_called_as_torchs_is() -> None:
    model = lstm(0, 7, 6, 2)
    quantized, x = Int8Lstm(model), drawn(0, 5, 3, 7).clamp(-2, 2)
    zeros = torch.zeros(2, 3, 6), torch.zeros(2, 3, 6)
    for left, right in zip(flat(quantized(x)), flat(model(x)), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0.02)
    assert all(map(torch.equal, flat(quantized(x)), flat(quantized(x, zeros))))
    unbatched = flat(quantized(x[:, 0], (zeros[0][:, 0], zeros[1][:, 0])))
    assert [each.shape for each in unbatched] == [each.shape for each in flat(model(x[:, 0]))]
    assert torch.equal(unbatched[0], quantized(x)[0][:, 0])
    first = Int8Lstm(lstm(0, 7, 6, 2, batch_first=True))
    assert torch.equal(first(x.transpose(0, 1))[0].transpose(0, 1), quantized(x)[0])
    assert [each.shape for each in flat(quantized(x[:0]))] == [(0, 3, 6), (2, 3, 6), (2, 3, 6)]


def test_inputs_of_other_types_and_shapes_are_refused() -> None:
    layer, model = Int8Linear(linear(0, 70, 6)), Int8Lstm(lstm(0, 70, 6, 1))
    with pytest.raises(RuntimeError, match="float32"):
        layer(torch.zeros(2, 70, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="packed weights have"):
        model(torch.zeros(2, 1, 7))
    with pytest.raises(RuntimeError, match=r"lstm takes input"):
        model(torch.zeros(2, 1, 70), (torch.zeros(1, 2, 6), torch.zeros(1, 2, 6)))


def words() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = WordLanguageModel(50, 20, 18, 2, 0.5).eval()
    model.set_submodule("encoder", Int8Embedding(model.encoder))
    model.set_submodule("rnn", Int8Lstm(model.rnn))
    model.set_submodule("decoder", Int8Linear(model.decoder))
    PerRowConverter().pack(model)
    return model


def inputs_of(steps: int, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(steps)
    tokens = torch.randint(0, 50, (steps, batch), generator=generator)
    return tokens, *(torch.rand(2, batch, 18, generator=generator) for _ in range(2))


def test_the_word_model_is_exported_with_lengths_and_batches_of_any_size() -> None:
    model = words()
    steps, batch = Dim("steps"), Dim("batch")
    shapes = {"tokens": {0: steps, 1: batch}, "h": {1: batch}, "c": {1: batch}}
    with torch.no_grad():
        program = export(model, inputs_of(7, 2), dynamic_shapes=shapes, strict=True).module()
    for steps, batch in ((1, 1), (7, 2), (25, 1), (3, 9)):
        given = inputs_of(steps, batch)
        assert all(map(torch.equal, program(*given), model(*given)))


def test_bytes_in_front_of_the_weights_change_no_result() -> None:
    plain, aligned = words(), words()
    align_for_aot_inductor(aligned)
    for name in ("rnn", "decoder"):
        assert len(aligned.get_submodule(name).packed) == len(plain.get_submodule(name).packed) + 48
    for steps, batch in ((1, 1), (25, 1), (3, 9)):
        given = inputs_of(steps, batch)
        assert all(map(torch.equal, aligned(*given), plain(*given)))
