"""Train a tiny random model with the Trainer of Hugging Face, in one of several ways."""

import contextlib
import json
import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

how, reporter = sys.argv[1:]
callbacks = []
if reporter == "aboard":
    import aboard.integrations.transformers  # noqa: F401 - makes the name known
elif reporter == "callback":
    from aboard.integrations.transformers import AboardCallback

    callbacks = [AboardCallback(experiment="bert", name="tiny")]


class Sentences(torch.utils.data.Dataset):
    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def __len__(self) -> int:
        return 24

    def __getitem__(self, place: int) -> dict[str, object]:
        if self.fails and place == 20:
            raise RuntimeError("no such sentence")
        words = torch.arange(place, place + 6) % 50
        return {"input_ids": words, "labels": torch.tensor(place % 2)}


torch.manual_seed(0)
config = BertConfig(
    vocab_size=50,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=16,
)
arguments = TrainingArguments(
    output_dir="output",
    num_train_epochs=2,
    per_device_train_batch_size=4,
    learning_rate=0.01,
    logging_steps=2,
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none" if reporter == "callback" else reporter,
    disable_tqdm=True,
    use_cpu=True,
)


def trainer_of(sentences: Sentences) -> Trainer:
    return Trainer(
        BertForSequenceClassification(config),
        arguments,
        train_dataset=sentences,
        eval_dataset=sentences,
        callbacks=callbacks,
    )


if how == "tries again":
    with contextlib.suppress(RuntimeError):
        trainer_of(Sentences(fails=True)).train()
trainer = trainer_of(Sentences(fails=how == "fails"))
trainer.train()
if how == "evaluates":
    trainer.evaluate(metric_key_prefix="test")
Path("told.json").write_text(json.dumps(trainer.state.log_history))
