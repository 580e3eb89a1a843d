from __future__ import annotations

import threading
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tasks.quantize.methods.float import WithoutOneDnn

ONE_DNN = cast(Any, torch.backends.mkldnn)


class Meeting(nn.Module):
    """Enters and leaves when it is told, and notes how oneDNN was set at both times."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.leave = threading.Event(), threading.Event()
        self.seen: list[bool] = []

    def forward(self, value: Tensor) -> Tensor:
        self.seen.append(ONE_DNN.enabled)
        self.inside.set()
        assert self.leave.wait(30)
        self.seen.append(ONE_DNN.enabled)
        return value


@pytest.mark.parametrize("before", [True, False])
def test_one_dnn_stays_off_until_the_last_thread_left_and_is_then_as_it_was(before: bool) -> None:
    first, second = Meeting(), Meeting()
    threads = [threading.Thread(target=WithoutOneDnn(model), args=(torch.zeros(1),)) for model in (first, second)]
    enabled, ONE_DNN.enabled = ONE_DNN.enabled, before
    try:
        for thread, model in zip(threads, (first, second), strict=True):
            thread.start()
            assert model.inside.wait(30)
        for thread, model in zip(threads, (first, second), strict=True):
            model.leave.set()
            thread.join(30)
        assert ONE_DNN.enabled is before
    finally:
        ONE_DNN.enabled = enabled
    assert first.seen + second.seen == [False] * 4


def test_a_call_that_fails_leaves_one_dnn_as_it_was() -> None:
    before = ONE_DNN.enabled
    with pytest.raises(RuntimeError):
        WithoutOneDnn(nn.Linear(2, 2))(torch.zeros(1, 3))
    assert ONE_DNN.enabled is before
