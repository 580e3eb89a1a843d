from typing import get_args

import pytest
import torch
from torch import nn
from torchvision.models import ResNet18_Weights

from storage.errors import ConfigurationError, NightquantError
from tasks.domains.image_classification import TorchvisionModel, TorchvisionSpec
from tasks.domains.image_classification.network import build_vision, load_weights, published
from tasks.values.refs import DatasetRef


def dataset_of(classes: int) -> DatasetRef:
    return DatasetRef(kind="images", digest="0" * 64, splits={}, classes=classes, sample_shape=(3, 32, 32))


def spec(name: str, **settings) -> TorchvisionSpec:
    return TorchvisionSpec(kind="torchvision", name=name, **settings)


@pytest.mark.parametrize("name", get_args(TorchvisionModel))
@pytest.mark.slow
def test_every_model_is_built_for_the_classes_of_the_data_with_its_own_fusing(name):
    # Without memory for weights: the largest of them have 88 million.
    with torch.device("meta"):
        model = build_vision(spec(name), dataset_of(7))

    assert not model.training
    assert hasattr(model, "fuse_model")
    assert [module.out_features for module in model.modules() if isinstance(module, nn.Linear)][-1] == 7


def test_a_broken_file_is_refused_with_its_address(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    (tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth").write_bytes(b"half a file")

    with pytest.raises(NightquantError, match=r"resnet18-f37072fd\.pth"):
        load_weights(ResNet18_Weights.IMAGENET1K_V1)


@pytest.mark.parametrize("name", ["ResNet18_Weights.NOTHING", "Nothing_Weights.V1", "resnet18"])
@pytest.mark.slow
def test_unknown_names_are_refused(name):
    with pytest.raises(ConfigurationError, match="does not publish weights"):
        published(name)


def test_weights_of_a_quantized_model_are_refused():
    with pytest.raises(ConfigurationError, match=r"The weights .* are already quantized"):
        published("ResNet18_QuantizedWeights.IMAGENET1K_FBGEMM_V1")
