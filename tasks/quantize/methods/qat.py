"""Method ``qat``: quantization-aware training: simulate quantization, fine-tune, convert."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from tasks.domains.base import FineTunes, GivesCalibration
from tasks.quantize.base import Converted
from tasks.quantize.methods.static import GraphMethod, GraphRecipe, StaticRecipe

if TYPE_CHECKING:
    from torch import nn

    from tasks.quantize.base import Need
    from tasks.quantize.source import ModelSource


class QatRecipe(GraphRecipe):
    """Static quantization after fine-tuning with simulated quantization."""

    method: Literal["qat"]
    epochs: PositiveInt = 2
    """Passes over the train split."""
    # Batch normalization cannot train on a single image.
    batch_size: int = Field(default=32, ge=2)
    """Samples in one step."""
    learning_rate: PositiveFloat = 1e-4
    """Of the optimizer."""
    freeze_observers_after: NonNegativeInt = 1
    """Epochs after which ranges stay."""
    freeze_batch_norm_after: NonNegativeInt = 1
    """Epochs after which batch normalization's statistics stay."""
    seed: int = 0
    """Decides the order of the samples."""

    def sketch(self) -> StaticRecipe:
        """Static quantization of the same modules."""
        common = self.model_dump(include=set(GraphRecipe.model_fields) - {"method"})
        return StaticRecipe(method="static", **common).sketch()


class Qat(GraphMethod[QatRecipe]):
    """Weights and activations to int8 after training against the error that this makes."""

    recipe = QatRecipe
    needs: ClassVar[tuple[Need, ...]] = (GivesCalibration, FineTunes)

    def convert(self, model: nn.Module, recipe: QatRecipe, source: ModelSource) -> Converted:
        """Fine-tune on a GPU where there is one, else on the CPU; go on from the last epoch that was finished.

        Raises what static quantization and `fine_tuned` do.
        """
        from tasks.quantize.calibration import refuse_non_finite_state
        from tasks.quantize.fine_tune import fine_tuned
        from tasks.quantize.graph.convert import quantize_as_planned
        from tasks.quantize.graph.plan import make_plan

        refuse_non_finite_state(model)
        plan = make_plan(model, recipe, source.example_inputs)
        return quantize_as_planned(model, plan, recipe, source, lambda prepared: fine_tuned(prepared, recipe, source))
