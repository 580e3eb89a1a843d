"""What a preview says in lines, and what --debug adds."""

from __future__ import annotations

import click
import pytest

from flows.commands import print_tracebacks
from flows.commands.setup import preview_lines
from tasks.refs import ModuleCoverage
from tasks.results import CandidatePreview, Preview, QualityLoss

FLOAT = [ModuleCoverage(module=f"conv{n}", type="Conv2d", parameters=9, quantized=False, reason="x") for n in range(7)]
FOUND = Preview(
    workload="net",
    problems=("int8/eager: it failed",),
    tracebacks=("Traceback (most recent call last): of a library's\n",),
    candidates=(
        CandidatePreview(candidate="int8/eager", obstacle="it failed\nbelow"),
        CandidatePreview(
            candidate="int8/openvino",
            coverage=(ModuleCoverage(module="fc", type="Linear", parameters=4, quantized=True), *FLOAT),
        ),
    ),
)


def test_a_candidate_is_a_line_and_each_reason_names_the_first_modules() -> None:
    assert [str(line) for line in preview_lines(FOUND)] == [
        "net: 1 problem",
        "  ✗ int8/eager: it failed",
        "  ✓ int8/openvino: 1 of 8 modules quantized",
        "      stays float: conv0 (Conv2d), conv1 (Conv2d), conv2 (Conv2d), conv3 (Conv2d), conv4 (Conv2d), 2 more: x",
        "  ✗ int8/eager: it failed",
    ]


def test_tracebacks_are_printed_by_debug_alone_and_never_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_tracebacks(FOUND.tracebacks)  # without a command line
    for debug in (False, True):
        with click.Context(click.Command("nightquant"), obj=debug):
            print_tracebacks(FOUND.tracebacks * 2)
        assert capsys.readouterr().err == (FOUND.tracebacks[0] + "\n" if debug else "")
    assert "tracebacks" not in FOUND.model_dump()


def test_a_loss_is_a_line_that_says_how_much_where_and_what_to_do() -> None:
    loss = QualityLoss(metric="mse", higher_is_better=False, before=2.0, after=2.7, share=0.35, samples=1024)
    located = {"layers": ("a", "b"), "ranks_for": "openvino", "exclude": ("head", "a", "b")}
    remedy = {"left": 2.04, "share_left": 0.02}
    assert loss.describe() == "is 35.0% worse in mse on 1,024 samples."
    assert loss.model_copy(update=located | remedy).describe() == (
        "is 35.0% worse in mse on 1,024 samples; these layers lose most in torch's conversion: "
        'a, b. Keep them float: exclude = ["head", "a", "b"], which leaves a loss of 2.0%; exclude more layers by the '
        "ranking of `nightquant sensitivity`."
    )


@pytest.mark.parametrize(
    ("left", "share_left", "said"),
    [
        (0.0001, 0.008, 'Keep them float: exclude = ["a"], which leaves mae at 0.0001.'),
        (
            0.00342,
            0.279,
            "Keeping them float would still leave mae at 0.00342; `nightquant sensitivity` ranks all layers.",
        ),
    ],
)
def test_a_loss_of_more_than_the_float_models_quality_is_described_by_both_qualities(
    left: float, share_left: float, said: str
) -> None:
    loss = QualityLoss(
        metric="mae", higher_is_better=False, before=5.8e-8, after=0.00345, share=0.28, samples=128, layers=("a",),
        exclude=("a",), left=left, share_left=share_left,
    )  # fmt: skip
    began = "changes mae from 5.8e-08 to 0.00345 on 128 samples; these layers lose most: a. "
    assert loss.describe() == began + said
