"""transformers' Trainer on a small model: accumulation over unequal micro-batches, checkpointing, evaluation."""

import copy

import pytest
import torch
from configs import model

import gated_sparse_attention as gsa

transformers = pytest.importorskip("transformers", minversion="5.11", reason="transformers 5.11 or newer is needed")
pytest.importorskip("accelerate", reason="accelerate is not installed (pip install -r tools/requirements-clients.txt)")

STEPS, ACCUMULATED, LENGTH = 2, 2, 48


def rows():
    """Every second one with few labels."""
    tokens = torch.randint(0, 131, (STEPS * ACCUMULATED, LENGTH), generator=torch.Generator().manual_seed(3))
    labels = tokens.clone()
    labels[::2, 8:] = -100
    return [{"input_ids": x, "labels": y} for x, y in zip(tokens, labels)]


def train(made, folder):
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=1, gradient_accumulation_steps=ACCUMULATED,
        gradient_checkpointing=True, learning_rate=0.1, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0,
        use_cpu=True, report_to=[], save_strategy="no", logging_steps=1, train_sampling_strategy="sequential",
        disable_tqdm=True, remove_unused_columns=False)  # fmt: skip
    trainer = transformers.Trainer(made, arguments, train_dataset=rows(), eval_dataset=rows())
    trainer.train()
    return trainer


def by_hand(made):
    """Sums of cross-entropy, and means of the indexer's loss weighed by labels, over all labels of a step."""
    losses, data = [], rows()
    for step in range(STEPS):
        part = data[step * ACCUMULATED : (step + 1) * ACCUMULATED]
        count = sum(int((row["labels"][1:] != -100).sum()) for row in part)
        loss = 0
        for row in part:
            x, own = row["input_ids"][None], int((row["labels"][1:] != -100).sum())
            output = made(x, labels=row["labels"][None])  # means, both
            loss = loss + output.loss * own / count
        made.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter -= 0.1 * parameter.grad
        losses.append(loss.item())
    return losses


def test_the_trainers_steps_are_those_by_hand(tmp_path):
    gsa.save_model(gsa.GatedSparseForCausalLM(model(layers=2)), tmp_path)
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    twin = copy.deepcopy(made).train()
    trainer, expected = train(made, tmp_path / "run"), by_hand(twin)
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(expected, rel=1e-3)
    for (name, a), b in zip(made.named_parameters(), twin.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    for a, b in zip(made.buffers(), twin.buffers()):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        x, labels = (torch.stack([row[key] for row in rows()]) for key in ("input_ids", "labels"))
        loss = twin.eval()(x, labels=labels).loss
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss.item(), rel=1e-3)
