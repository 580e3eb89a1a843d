"""Method ``qat``: quantization-aware training: simulate quantization, fine-tune, convert."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from tasks.extensions import Need
from tasks.quantize.base import Method
from tasks.quantize.methods.static import GraphRecipe, StaticRecipe
from tasks.quantize.spec import Spec, Training

if TYPE_CHECKING:
    from tasks.quantize.trained import QatConverter


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


class Qat(Method[QatRecipe]):
    """Weights and activations to int8 after training against the error that this makes."""

    recipe = QatRecipe
    needs: ClassVar[tuple[Need, ...]] = ("calibration", "fine-tuning")

    def spec(self, recipe: QatRecipe) -> Spec:
        """Ask for weights and ranges that are fine-tuned."""
        training = Training(
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            freeze_observers_after=recipe.freeze_observers_after,
            freeze_batch_norm_after=recipe.freeze_batch_norm_after,
            seed=recipe.seed,
        )
        return Spec(recipe=recipe, layers=recipe.layers(), training=training, engine=recipe.engine, graph=recipe.graph)

    def converter(self) -> QatConverter:
        """Import training and torch's graph modes."""
        from tasks.quantize.trained import QatConverter

        return QatConverter()
