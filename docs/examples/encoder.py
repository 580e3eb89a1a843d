"""Train a small BERT that sorts requests to a help desk, and write a table of such requests: ``python encoder.py``.

The model goes to ``encoder/``, as ``save_pretrained`` writes it, and the table to ``requests.parquet``.
"""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

HERE = Path(__file__).parent
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
TOPICS = {
    "billing": ["invoice", "refund", "payment", "charged twice", "receipt", "credit card", "cancel the plan"],
    "access": ["password", "login", "locked out", "two-factor code", "account", "reset link", "permission"],
    "outage": ["is down", "timeout", "error 500", "slow", "cannot connect", "server", "since this morning"],
}
FILLERS = ["hello", "please help", "my", "the", "since yesterday", "again", "thank you", "urgent", "we", "still"]


def requests(count: int) -> list[tuple[str, str]]:
    """Draw requests and their topics; one in ten mentions two topics, of which the first is its label."""
    draw, found = random.Random(0), []
    for _ in range(count):
        topic, other = draw.sample(list(TOPICS), 2)
        words = draw.sample(TOPICS[topic], draw.randint(1, 4)) + draw.choices(FILLERS, k=draw.randint(3, 20))
        words += draw.sample(TOPICS[other], 2) if draw.random() < 0.1 else []
        draw.shuffle(words)
        found.append((" ".join(words), topic))
    return found


def write(folder: Path) -> None:
    """Train for a few seconds, and write the directory and the table."""
    rows = requests(2400)
    names = ["train"] * 1600 + ["test"] * 800
    table = {"text": [text for text, _ in rows], "topic": [topic for _, topic in rows], "split": names}
    pq.write_table(pa.table(table), folder / "requests.parquet")

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator([text for text, _ in rows[:1600]], trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=128,
        id2label=dict(enumerate(TOPICS)),
        label2id={topic: number for number, topic in enumerate(TOPICS)},
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for start in range(0, 1600, 32):
        chosen = rows[start : start + 32]
        batch = fast([text for text, _ in chosen], padding=True, return_tensors="pt")
        batch["labels"] = torch.tensor([config.label2id[topic] for _, topic in chosen])
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    model.save_pretrained(folder / "encoder")
    fast.save_pretrained(folder / "encoder")


if __name__ == "__main__":
    write(HERE)
