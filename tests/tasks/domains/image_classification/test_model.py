import pytest
import torch
from torch import nn

from storage.errors import ConfigurationError
from tasks.domains.image_classification.model import build_vision, model_names
from tasks.domains.image_classification.sections import TorchvisionSpec
from tasks.domains.sequence import LstmSpec
from tasks.models import build, example_inputs
from tasks.refs import DatasetRef
from tests.tasks.vision_workloads import image_workload, rendered


def dataset_of(classes: int) -> DatasetRef:
    return DatasetRef(kind="images", digest="0" * 64, splits={}, classes=classes, sample_shape=(3, 32, 32))


def spec(name: str, **settings) -> TorchvisionSpec:
    return TorchvisionSpec(kind="torchvision", name=name, **settings)


def test_every_family_that_torchvision_quantizes_is_known():
    known = {"resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "googlenet", "inception_v3"}
    known |= {"shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "resnext101_32x8d", "resnext101_64x4d"}

    assert known <= set(model_names())


@pytest.mark.parametrize("name", model_names())
def test_every_model_is_built_for_the_classes_of_the_data_with_its_own_fusing(name):
    # Without memory for weights: the largest of them have 88 million.
    with torch.device("meta"):
        model = build_vision(spec(name), dataset_of(7))

    assert not model.training
    assert hasattr(model, "fuse_model")
    assert [module.out_features for module in model.modules() if isinstance(module, nn.Linear)][-1] == 7
    assert not any(key.startswith(("aux", "Aux")) for key in model.state_dict())


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "shufflenet_v2_x0_5", "googlenet"])
def test_a_call_gives_one_tensor_of_logits_in_evaluation_and_in_training(name):
    model = build_vision(spec(name), dataset_of(7))
    images = torch.rand(2, 3, 64, 64)

    with torch.no_grad():
        assert model(images).shape == (2, 7)
        assert model.train()(images).shape == (2, 7)


def test_more_outputs_than_classes_are_allowed_and_fewer_refused():
    assert build_vision(spec("resnet18", num_classes=9), dataset_of(7)).fc.out_features == 9
    with pytest.raises(ConfigurationError, match="fewer than the 7 classes"):
        build_vision(spec("resnet18", num_classes=5), dataset_of(7))


def test_an_unknown_model_is_refused_with_the_names_there_are():
    with pytest.raises(ConfigurationError, match=r'no quantizable model "resnet19".*resnet18'):
        build(spec("resnet19"), dataset_of(7))


def test_another_kind_of_model_is_a_defect():
    with pytest.raises(TypeError, match="lstm"):
        build_vision(LstmSpec(kind="lstm"), dataset_of(7))


@pytest.mark.parametrize("batch_size", [1, 4, 40])
def test_example_images_are_the_first_of_the_test_split_repeated_if_need_be(tmp_path, batch_size):
    dataset, store = rendered(tmp_path)

    examples = example_inputs(image_workload(), dataset, store, batch_size=batch_size)

    assert list(examples) == ["images"]
    assert examples["images"].shape == (batch_size, 3, 16, 16)
    assert examples["images"].is_contiguous()
    if batch_size == 40:
        assert torch.equal(examples["images"][0], examples["images"][18])
