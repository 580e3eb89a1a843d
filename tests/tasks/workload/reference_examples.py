"""One example for each section of docs/workload-file.md, by the heading of the section."""

from __future__ import annotations

EXAMPLES = {
    "Top level": """
schema_version = 1
name = "word-lm"
description = "LSTM word language model on Python's own language reference"
domain = "language-model"
licence = "The text is Python's documentation (PSF License Version 2)"
""",
    "[benchmark]": """
[benchmark]
baseline = "float/torchscript"
threads = 1
batch_size = 1
""",
    "[gate]": """
[gate]
objective = "fastest"
max_quality_drop = 0.5
min_size_ratio = 3.0
min_speedup = 1.05
""",
    "[search]": """
[search]
budget_s = 900
max_quality_drop = 0.5
methods = ["static", "dynamic"]
""",
    "none": """
[[recipe]]
name = "float"
method = "none"
runtimes = ["eager", "torchscript"]
""",
    "cast": """
[[recipe]]
name = "bfloat16"
method = "cast"
runtimes = ["openvino"]
""",
    "dynamic": """
[[recipe]]
name = "dynamic-int8"
method = "dynamic"
modules = ["LSTM", "Linear"]
exclude = ["decoder"]
runtimes = ["torchscript", "onnxruntime"]
""",
    "dynamic-per-row": """
[[recipe]]
name = "int8-per-row"
method = "dynamic-per-row"
embedding_bits = 8
runtimes = ["aot-inductor"]
""",
    "static": """
[[recipe]]
name = "static-int8"
method = "static"
activation_observer = "histogram"
calibration_batches = 8
runtimes = ["torchscript", "openvino"]
""",
    "qat": """
[[recipe]]
name = "qat-int8"
method = "qat"
epochs = 2
learning_rate = 0.0001
runtimes = ["torchscript", "onnxruntime"]
""",
    "language-model: data, pydoc-topics": """
[data]
kind = "pydoc-topics"
seed = 0
""",
    "language-model: data, text": """
[data]
kind = "text"
uri = "wikitext-2"
""",
    "language-model: model, word-lm": """
[model]
kind = "word-lm"
embedding_size = 512
hidden_size = 256
layers = 5
""",
    "language-model: checkpoint, train": """
[checkpoint]
kind = "train"
epochs = 4
batch_size = 8
learning_rate = 8e-3
gradient_clip = 0.5
""",
    "language-model: evaluate": """
[evaluate]
mode = "segments"
segments = 8
warm_up = 64
""",
    "sequence: data, random-sequence": """
[data]
kind = "random-sequence"
length = 20
batch_size = 1
""",
    "sequence: model, lstm": """
[model]
kind = "lstm"
dimension = 8
layers = 1
""",
    "image-classification: data, rendered-characters": """
[data]
kind = "rendered-characters"
characters = "ABDEFHKMRSTX"
image_size = 32
test = 2048
""",
    "image-classification: data, image-folder": """
[data]
kind = "image-folder"
uri = "photos"
image_size = 224
transforms = { resize = 256 }
""",
    "image-classification: data, torchvision": """
[data]
kind = "torchvision"
name = "CIFAR10"
root = "datasets"
download = true
image_size = 32
""",
    "image-classification: model, torchvision": """
[model]
kind = "torchvision"
name = "resnet18"
""",
    "train": """
[checkpoint]
kind = "train"
epochs = 2
batch_size = 64
learning_rate = 0.002
""",
    "image-classification: checkpoint, torchvision-weights": """
[checkpoint]
kind = "torchvision-weights"
weights = "ResNet18_Weights.IMAGENET1K_V1"
""",
    "image-classification: evaluate": """
[evaluate]
batch_size = 64
""",
    "text-encoder: data, python-sources": """
[data]
kind = "python-sources"
train = 6000
test = 2000
""",
    "text-encoder: data, parquet": """
[data]
kind = "parquet"
uri = "requests.parquet"
text = "text"
label = "topic"
split = "split"
""",
    "text-encoder: model, config": """
[model]
kind = "config"
task = "classification"
vocabulary = 4000

[model.config]
model_type = "bert"
hidden_size = 128
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 512
""",
    "text-encoder: model, directory": """
[model]
kind = "directory"
path = "my-bert"
""",
    "text-encoder: checkpoint, directory": """
[checkpoint]
kind = "directory"
""",
    "text-encoder: evaluate": """
[evaluate]
metric = "f1-macro"
""",
    "text-encoder: benchmark": """
[benchmark]
sequence_length = 128
""",
    "custom: data, factory": """
[data]
kind = "factory"
factory = "gestures:read"
collate = "gestures:pad"
files = ["gestures.parquet"]

[data.axes]
positions = ["batch", "time"]
lengths = ["batch"]
""",
    "custom: data, parquet": """
[data]
kind = "csv"
uri = "power.csv"
features = ["wind", "temperature", "pressure", "age"]
target = "power"
""",
    "custom: checkpoint, train": """
[checkpoint]
kind = "train"
train = "power:train"
arguments = { learning_rate = 0.003 }
epochs = 5
""",
    "custom: evaluate": """
[evaluate]
metric = "mse"
""",
    "custom: fine_tune": """
[fine_tune]
train = "power:train"
arguments = { learning_rate = 0.0003 }
""",
    "custom: benchmark": """
[benchmark]
sequence_length = 32
""",
    "uri": """
[checkpoint]
kind = "uri"
uri = "https://example.com/word_lm.safetensors"
sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
""",
    "seeded": """
[checkpoint]
kind = "seeded"
seed = 29592
""",
    "factory": """
[model]
kind = "factory"
factory = "gestures:Gestures"
arguments = { hidden = 64 }
""",
}
