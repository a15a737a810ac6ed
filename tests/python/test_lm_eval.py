"""lm-eval on a folder that the program trained: two local tasks, by its own program and called from Python, against
logits that are computed here."""

import json
import subprocess
import sys

import pytest
import torch

import gated_sparse_attention as gsa

pytest.importorskip("transformers", minversion="5.11", reason="transformers 5.11 or newer is needed")
lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed (pip install -r tools/requirements-clients.txt)")

BOS = 256
CHOICES = [
    {"question": "the keeper of the", "choices": [" lamp", " harbour walks", " x"], "answer": 0},
    {"question": "the keeper of the lamp walks to", "choices": [" the lamp", " the harbour"], "answer": 1},
    {"question": "walks", "choices": [" to", " of the", " keeper", " lamp"], "answer": 0},
    {"question": "harbour\nthe", "choices": [" lamp", " keeper"], "answer": 1},
]
PROMPTS = ["the keeper of the", "walks to the harbour\nthe keeper of the lamp walks", "lamp", "the keeper of the lamp"]
TASKS = {
    "choose": """task: choose
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: answer
doc_to_choice: choices
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    "go_on": """task: go_on
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{continuation}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory):
    names = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path_factory.mktemp("cache"))}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        yield


def sum_of_logits(model, context, continuation):
    ids = torch.tensor([[BOS, *context.encode(), *continuation.encode()]])
    with torch.no_grad():
        scores = model(ids[:, :-1], phase="sparse")[0].log_softmax(-1).gather(1, ids[0, 1:, None])
    return scores[-len(continuation.encode()) :].sum().item()


def greedy(model, prompt):
    ids = [BOS, *prompt.encode()]
    for _ in range(12):
        with torch.no_grad():
            ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())
        if ids[-1] in (10, 257):
            ids.pop()
            break
    return bytes(ids[1:]).decode()[len(prompt) :]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory, trained):
    """Their folder, and what is expected: likelihoods of every choice, and texts."""
    folder, model = tmp_path_factory.mktemp("tasks"), gsa.load_model(trained("gsa")).eval()
    likelihoods = [[sum_of_logits(model, doc["question"], choice) for choice in doc["choices"]] for doc in CHOICES]
    texts = [greedy(model, prompt) for prompt in PROMPTS]
    # One of the answers is wrong, so that the score says something.
    wanted = [{"prompt": prompt, "continuation": text + " and" * (n == 1)} for n, (prompt, text) in enumerate(zip(PROMPTS, texts))]
    for (name, task), docs in zip(TASKS.items(), (CHOICES, wanted)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
        (folder / f"{name}.yaml").write_text(task.replace("DATA", str(folder / f"{name}.jsonl")))
    return folder, likelihoods, texts


def check(results, samples, likelihoods, texts):
    samples = {name: sorted(of, key=lambda sample: sample["doc_id"]) for name, of in samples.items()}
    for sample, expected in zip(samples["choose"], likelihoods, strict=True):
        found = [float(answer[0][0]) for answer in sample["resps"]]
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert [sample["resps"][0][0] for sample in samples["go_on"]] == texts
    right = [max(range(len(of)), key=of.__getitem__) == doc["answer"] for of, doc in zip(likelihoods, CHOICES)]
    assert results["choose"]["acc,none"] == pytest.approx(sum(right) / len(right)) and any(right)
    assert results["go_on"]["exact_match,none"] == pytest.approx(0.75)


def test_the_program_of_lm_eval(tasks, trained, tmp_path):
    """In batches, whose rows have different lengths."""
    folder, *expected = tasks
    done = subprocess.run(
        [sys.executable, "-m", "gated_sparse_attention.lm_eval", "run", "--model", "hf", "--model_args",
         f"pretrained={trained('gsa')},dtype=float32", "--tasks", ",".join(TASKS), "--include_path", str(folder),
         "--device", "cpu", "--batch_size", "3", "--log_samples", "--output_path", str(tmp_path)],
        text=True, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = tmp_path.rglob("results_*.json")
    samples = {}
    for name in TASKS:
        (file,) = tmp_path.rglob(f"samples_{name}_*.jsonl")
        samples[name] = [json.loads(line) for line in file.read_text().splitlines()]
    check(json.loads(report.read_text())["results"], samples, *expected)


def test_from_python_one_by_one(tasks, trained):
    folder, *expected = tasks
    found = lm_eval.simple_evaluate(
        model="hf", model_args={"pretrained": str(trained("gsa")), "dtype": "float32"}, tasks=list(TASKS), device="cpu",
        task_manager=lm_eval.tasks.TaskManager(include_path=str(folder)), batch_size=1, bootstrap_iters=0,
    )  # fmt: skip
    check(found["results"], found["samples"], *expected)
