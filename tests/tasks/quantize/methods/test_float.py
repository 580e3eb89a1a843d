from __future__ import annotations

import pytest
import torch

from tasks.quantize.engine import running
from tasks.quantize.methods import FloatRecipe
from tasks.quantize.spec import spec_of


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.slow
def test_one_dnn_is_off_where_the_recipe_says_so_and_then_as_it_was(before: bool, onednn: bool) -> None:
    def fail() -> None:
        with running(spec_of(FloatRecipe(name="float", method="none", onednn=onednn))):
            assert torch.backends.mkldnn.enabled is (before and onednn)
            raise KeyError

    enabled = torch.backends.mkldnn.enabled
    torch._C._set_mkldnn_enabled(before)
    try:
        with pytest.raises(KeyError):
            fail()
        assert torch.backends.mkldnn.enabled is before
    finally:
        torch._C._set_mkldnn_enabled(enabled)
