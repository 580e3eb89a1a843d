import pytest
from PIL import Image

from storage.errors import ConfigurationError
from tasks.data import pictures
from tasks.domains.image_classification.network import preprocessing
from tests.tasks.vision_workloads import image_workload

SEGMENTATION = "FCN_ResNet50_Weights.COCO_WITH_VOC_LABELS_V1"


def chosen_for(workload):
    return preprocessing(workload, workload.data)


def test_the_weights_own_preset_decides_size_and_normalization(tmp_path):
    data = {"kind": "image-folder", "uri": str(tmp_path), "transforms": {"preset": "weights"}}
    checkpoint = {"kind": "torchvision-weights", "weights": "EfficientNet_B0_Weights.IMAGENET1K_V1"}

    chosen = chosen_for(image_workload(data=data, checkpoint=checkpoint))

    assert (chosen.resize, chosen.crop, chosen.interpolation) == (256, 224, "bicubic")
    assert chosen.mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize(
    ("settings", "checkpoint", "message"),
    [
        ({"preset": "weights"}, {"kind": "train"}, "needs checkpoint.kind"),
        ({"preset": "weights"}, {"kind": "torchvision-weights", "weights": "Nothing.V1"}, "does not publish weights"),
        (
            {"preset": "weights"},
            {"kind": "torchvision-weights", "weights": SEGMENTATION},
            "needs checkpoint.kind",
        ),
        ({"resize": 8, "crop": 9}, {"kind": "train"}, "the crop of 9 pixels"),
        ({"mean": [0.5]}, {"kind": "train"}, "three means"),
    ],
)
@pytest.mark.slow
def test_transforms_that_cannot_be_are_refused(tmp_path, settings, checkpoint, message):
    data = {"kind": "image-folder", "uri": str(tmp_path), "transforms": settings}

    with pytest.raises(ConfigurationError, match=message):
        chosen_for(image_workload(data=data, checkpoint=checkpoint))


def test_a_picture_that_is_found_damaged_only_once_it_is_converted_is_unreadable(tmp_path):
    path = tmp_path / "cut.png"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:500])
    geometry = pictures.Preprocessing(8, 8, (0.5,) * 3, (0.5,) * 3)

    with pytest.raises(pictures.UnreadableError, match="OSError"):
        geometry.pixels(Image.open(path))
