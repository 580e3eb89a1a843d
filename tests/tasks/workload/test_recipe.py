from __future__ import annotations

import pytest
from pydantic import ValidationError

from tasks.quantize.methods import StaticRecipe


@pytest.mark.slow
def test_a_runtime_that_is_named_twice_is_refused() -> None:
    assert StaticRecipe(name="int8", method="static", runtimes=("torchscript", "eager")).runtimes[0] == "torchscript"
    with pytest.raises(ValidationError, match="runtimes names one twice"):
        StaticRecipe(name="int8", method="static", runtimes=("eager", "eager"))
