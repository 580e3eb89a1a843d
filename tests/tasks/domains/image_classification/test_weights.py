import io

import pytest
import torch
from torchvision.models import GoogLeNet_Weights, ResNet18_Weights, googlenet, resnet18

from storage.errors import ConfigurationError, InputError
from tasks.domains.image_classification.model import build_vision
from tasks.domains.image_classification.sections import TorchvisionSpec
from tasks.domains.image_classification.weights import published, weights_state
from tests.tasks.models.test_vision import dataset_of

RESNET = "ResNet18_Weights.IMAGENET1K_V1"


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """torch.hub's folder of downloaded files, empty."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def place(folder, weights, state):
    torch.save(state, folder / weights.url.rpartition("/")[2])


def test_weights_that_lie_in_torch_hubs_folder_are_read_and_fit_the_model(checkpoints):
    state = resnet18(weights=None).state_dict()
    place(checkpoints, ResNet18_Weights.IMAGENET1K_V1, state)

    found = weights_state(RESNET)

    model = build_vision(TorchvisionSpec(kind="torchvision", name="resnet18"), dataset_of(1000))
    assert model.load_state_dict(found).missing_keys == []
    assert torch.equal(found["fc.weight"], state["fc.weight"])


def test_auxiliary_heads_are_left_out(checkpoints):
    place(
        checkpoints,
        GoogLeNet_Weights.IMAGENET1K_V1,
        googlenet(weights=None, aux_logits=True, init_weights=False).state_dict(),
    )

    found = weights_state("GoogLeNet_Weights.IMAGENET1K_V1")

    model = build_vision(TorchvisionSpec(kind="torchvision", name="googlenet"), dataset_of(1000))
    assert found.keys() == model.state_dict().keys()


def test_a_broken_file_is_refused_with_its_address(checkpoints):
    (checkpoints / ResNet18_Weights.IMAGENET1K_V1.url.rpartition("/")[2]).write_bytes(b"half a file")

    with pytest.raises(InputError, match=r"resnet18-f37072fd\.pth"):
        weights_state(RESNET)


def test_a_file_that_would_run_code_is_not_unpickled(checkpoints):
    place(checkpoints, ResNet18_Weights.IMAGENET1K_V1, {"fc.weight": print})

    with pytest.raises(InputError, match="cannot be had"):
        weights_state(RESNET)


@pytest.mark.parametrize("name", ["ResNet18_Weights.NOTHING", "Nothing_Weights.V1", "resnet18", "a.b.c"])
def test_unknown_names_are_refused(name):
    with pytest.raises(ConfigurationError, match="no weights"):
        published(name)


def test_weights_of_a_quantized_model_are_refused():
    with pytest.raises(ConfigurationError, match="quantized already"):
        published("ResNet18_QuantizedWeights.IMAGENET1K_FBGEMM_V1")


@pytest.mark.parametrize("size", [20, 28, 49, 120, 200])
def test_a_file_of_the_old_format_that_was_cut_off_is_refused_with_its_address(size, checkpoints):
    stream = io.BytesIO()
    torch.save({"w": torch.zeros(100)}, stream, _use_new_zipfile_serialization=False)
    name = ResNet18_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    (checkpoints / name).write_bytes(stream.getvalue()[:size])

    with pytest.raises(InputError, match=r"resnet18-f37072fd\.pth"):
        weights_state(RESNET)
