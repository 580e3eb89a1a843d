"""The architectures of the sweep: how each is made, small and with random weights, and what it is called with.

Source lines are kept as text, because the sweep writes them into a module as a user would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """A model of the sweep.

    ``model`` is an expression that makes it. ``inputs`` are expressions by the names of forward's parameters, of one
    sample each; ``g`` is a seeded generator.
    """

    family: str
    name: str
    model: str
    inputs: tuple[tuple[str, str], ...]
    imports: str = ""


def picture(size: int, name: str = "x") -> tuple[tuple[str, str], ...]:
    """Return the input of a vision model: one picture."""
    return ((name, f"torch.randn(3, {size}, {size}, generator=g)"),)


def tokens(length: int = 16, high: int = 200) -> tuple[tuple[str, str], ...]:
    """Return the inputs of a text encoder: ids and the mask of padding."""
    return (
        ("input_ids", f"torch.randint(5, {high}, ({length},), generator=g)"),
        ("attention_mask", f"torch.ones({length}, dtype=torch.int64)"),
    )


_TIMM = """
mobilenetv3_small_050 mobilenetv2_035 mobilenetv4_conv_small_035 mobileone_s0 mnasnet_small spnasnet_100 fbnetc_100
efficientnet_lite0 tf_efficientnet_b0 efficientnetv2_rw_t tinynet_e lcnet_050 semnasnet_075 hardcorenas_a ghostnet_050
ghostnetv2_100 repghostnet_050 repvgg_a0 repvit_m0_9 starnet_s1 mobilevit_xxs mobilevitv2_050 edgenext_xx_small
fastvit_t8 efficientformer_l1 efficientformerv2_s0 efficientvit_b0 efficientvit_m0 levit_128s tiny_vit_5m_224
poolformer_s12 caformer_s18 convnext_atto convnextv2_atto inception_next_atto mambaout_femto resnet18 resnetv2_18
resnext26ts res2net50_26w_4s regnetx_002 regnety_002 densenet121 dla46_c dpn48b hrnet_w18_small skresnet18
legacy_seresnet18 ecaresnet26t selecsls42 ese_vovnet19b_dw gernet_s cspresnet50 darknet53 xception41 rexnet_100
vit_tiny_patch16_224 deit_tiny_patch16_224 deit3_small_patch16_224 beit_base_patch16_224 eva02_tiny_patch14_224
cait_xxs24_224 pit_ti_224 pvt_v2_b0 swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 twins_pcpvt_small crossvit_9_240
coat_lite_tiny coatnet_pico_rw_224 xcit_nano_12_p16_224 visformer_tiny mixer_s32_224 gmlp_ti16_224 resmlp_12_224
sequencer2d_s tnt_s_patch16_224 focalnet_tiny_srf davit_tiny gcvit_xxtiny hgnetv2_b0 nextvit_small shvit_s1
"""
TIMM = tuple(_TIMM.split())

_TORCHVISION = """
alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5
squeezenet1_1 swin_t swin_v2_t vgg11_bn vit_b_32 wide_resnet50_2
"""
TORCHVISION = tuple(_TORCHVISION.split())
# Pictures of the smallest size that these take; 64 otherwise.
SIZES = {"inception_v3": 96, "googlenet": 96, "maxvit_t": 224, "alexnet": 96}
SIZES |= {"efficientformer_l1": 224, "crossvit_9_240": 240}
SEGMENTATION = ("fcn_resnet50", "lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large")

_SIZES = "hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64"
_TEXT = f"{_SIZES}, vocab_size=200, max_position_embeddings=64"
_OF_ROBERTA = f"{_TEXT}, pad_token_id=1"
ENCODERS = {
    "bert": ("Bert", _TEXT),
    "roberta": ("Roberta", _OF_ROBERTA),
    "xlm-roberta": ("XLMRoberta", _OF_ROBERTA),
    "camembert": ("Camembert", _OF_ROBERTA),
    "deberta-v2": ("DebertaV2", f"{_TEXT}, relative_attention=True, pos_att_type=['p2c', 'c2p'], position_buckets=8"),
    "electra": ("Electra", f"{_TEXT}, embedding_size=16"),
    "albert": ("Albert", f"{_TEXT}, embedding_size=16"),
    "mpnet": ("MPNet", _OF_ROBERTA),
    "modernbert": ("ModernBert", f"{_TEXT}, pad_token_id=0"),
    "distilbert": ("DistilBert", "dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=200"),
    "longformer": ("Longformer", f"{_OF_ROBERTA}, attention_window=8"),
    "convbert": ("ConvBert", f"{_TEXT}, embedding_size=32"),
    "mobilebert": ("MobileBert", f"{_TEXT}, embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32"),
    "squeezebert": ("SqueezeBert", f"{_TEXT}, embedding_size=32"),
    "roformer": ("RoFormer", _TEXT),
    "nystromformer": ("Nystromformer", f"{_TEXT}, segment_means_seq_len=16, num_landmarks=16"),
    "funnel": ("Funnel", "block_sizes=[1, 1], d_model=32, n_head=2, d_head=16, d_inner=64, vocab_size=200"),
}
_LOOK = f"{_SIZES}, image_size=64, patch_size=16"
VISION_ENCODERS = {
    "vit": ("ViT", _LOOK),
    "deit": ("DeiT", _LOOK),
    "dinov2": ("Dinov2", _LOOK),
    "swin": ("Swin", "embed_dim=16, depths=[1, 1], num_heads=[2, 2], image_size=64, patch_size=4, window_size=4"),
    "siglip": ("SiglipVision", _LOOK),
    "clip": ("CLIPVision", _LOOK),
    "convnext": ("ConvNext", "hidden_sizes=[16, 32], depths=[1, 1], num_stages=2"),
    "segformer": ("Segformer", ""),
}
_WAVES = f"{_SIZES}, conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2"
_WAVES += ", num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2"
SOUND_ENCODERS = {"wav2vec2": ("Wav2Vec2", _WAVES), "hubert": ("Hubert", _WAVES)}

OWN = """
class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(12, 32, batch_first=True), nn.Linear(32, 3)
    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])

class BidirectionalLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(12, 32, 2, batch_first=True, bidirectional=True), nn.Linear(64, 3)
    def forward(self, x):
        return self.head(self.rnn(x)[0].mean(1))

class Crnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d((4, 1)))
        self.rnn, self.head = nn.LSTM(128, 32, batch_first=True), nn.Linear(32, 11)
    def forward(self, x):
        return self.head(self.rnn(self.features(x).flatten(1, 2).transpose(1, 2))[0])

class Tcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(12 if n == 0 else 32, 32, 3, dilation=2**n) for n in range(3))
        self.head = nn.Linear(32, 3)
    def forward(self, x):
        x = x.transpose(1, 2)
        for n, layer in enumerate(self.layers):
            x = torch.relu(layer(nn.functional.pad(x, (2 * 2**n, 0))))
        return self.head(x[..., -1])

class Dlrm(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, 16) for _ in range(4))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(26, 32), nn.ReLU(), nn.Linear(32, 1))
    def forward(self, dense, sparse):
        all = torch.stack([self.bottom(dense), *(t(sparse[:, i:i+1]) for i, t in enumerate(self.tables))], 1)
        i, j = torch.tril_indices(5, 5, -1)
        return self.top(torch.cat([all[:, 0], (all @ all.transpose(1, 2))[:, i, j]], 1))

class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(500, 32), nn.Embedding(900, 32)
        self.left = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
        self.right = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    def forward(self, user, item):
        return {"score": (self.left(self.user(user)) * self.right(self.item(item))).sum(-1, keepdim=True)}

"""
_SERIES = (("x", "torch.randn(20, 12, generator=g)"),)
OWN_INPUTS = {
    "Gru": _SERIES,
    "BidirectionalLstm": _SERIES,
    "Crnn": (("x", "torch.randn(3, 64, 32, generator=g)"),),
    "Tcn": _SERIES,
    "Dlrm": (("dense", "torch.randn(13, generator=g)"), ("sparse", "torch.randint(1000, (4,), generator=g)")),
    "TwoTowers": (("user", "torch.randint(500, (), generator=g)"), ("item", "torch.randint(900, (), generator=g)")),
}


def architectures() -> Iterator[Architecture]:
    """Yield every architecture of the sweep, by family."""
    for name in TIMM:
        size = SIZES.get(name, 64)
        yield Architecture("timm", name, f"made({name!r}, {size})", picture(size), _IMPORT_TIMM)
    for name in TORCHVISION:
        size = SIZES.get(name, 64)
        options = ", image_size=64" if name == "vit_b_32" else ""
        options += ", init_weights=True" if name in ("googlenet", "inception_v3") else ""
        model = f"torchvision.models.{name}(num_classes=10{options})"
        yield Architecture("torchvision", name, model, picture(size), "import torchvision")
    for name in SEGMENTATION:
        model = f"torchvision.models.segmentation.{name}(weights_backbone=None, num_classes=5)"
        images = picture(64, "input" if name.startswith("lraspp") else "x")
        yield Architecture("torchvision", name, model, images, "import torchvision")
    for table, inputs in (
        (ENCODERS, tokens()),
        (VISION_ENCODERS, (("pixel_values", "torch.randn(3, 64, 64, generator=g)"),)),
        (SOUND_ENCODERS, (("input_values", "torch.randn(1600, generator=g)"),)),
    ):
        for name, (prefix, sizes) in table.items():
            model = f"transformers.{prefix}Model(transformers.{prefix}Config({sizes}))"
            yield Architecture("transformers", name, model, inputs, "import transformers")
    whisper = "transformers.WhisperConfig(d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=64"
    whisper = f"{whisper}, num_mel_bins=16, max_source_positions=32)"
    yield Architecture(
        "transformers",
        "whisper-encoder",
        f"transformers.models.whisper.modeling_whisper.WhisperEncoder({whisper})",
        (("input_features", "torch.randn(16, 64, generator=g)"),),
        "import transformers",
    )
    for name, inputs in OWN_INPUTS.items():
        yield Architecture("own", name, f"{name}()", inputs, OWN)


_IMPORT_TIMM = """import timm

def made(name, size):
    try:  # transformers that are made for one size
        return timm.create_model(name, num_classes=10, img_size=size)
    except TypeError:
        return timm.create_model(name, num_classes=10)
"""
