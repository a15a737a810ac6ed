"""lm-eval's local-completions before gsa serve: likelihoods and texts of a small local task."""

import json

import pytest

lm_eval = pytest.importorskip("lm_eval")
import gated_sparse_attention  # noqa: E402, F401  tells transformers of the byte tokenizer

CHOICES = [
    {"question": "the keeper and the", "choices": [" lamp", " xq"], "answer": 0},
    {"question": "the bell and the tide and the", "choices": [" zz", " rope"], "answer": 1},
    {"question": "the net and the boat and the door are", "choices": [" number", " nmuber"], "answer": 0},
]
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
target_delimiter: ""
doc_to_text: "{{{{question}}}}"
"""
CHOOSE = """output_type: multiple_choice
doc_to_target: answer
doc_to_choice: choices
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
GO_ON = """output_type: generate_until
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.mark.parametrize("batch", [1, 3])
def test_local_completions(model, server, tmp_path, monkeypatch, batch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    data = tmp_path / "data.json"
    data.write_text("\n".join(map(json.dumps, CHOICES)))
    for name, rest in (("choose", CHOOSE), ("go_on", GO_ON)):
        (tmp_path / f"{name}.yaml").write_text(TASK.format(name=name, data=data) + rest)
    arguments = {
        "base_url": f"{server.url}/v1/completions", "model": "book", "tokenizer_backend": "huggingface",
        "tokenizer": str(model), "add_bos_token": True, "max_length": 1024, "num_concurrent": 2,
    }  # fmt: skip
    results = lm_eval.simple_evaluate(
        model="local-completions", model_args=arguments, tasks=["choose", "go_on"], batch_size=batch,
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tmp_path)), log_samples=True,
    )  # fmt: skip
    for sample, question in zip(results["samples"]["choose"], CHOICES, strict=True):
        for (likelihood, _), choice in zip(sample["filtered_resps"], question["choices"], strict=True):
            assert likelihood == pytest.approx(likelihood_of(server, question["question"], choice), abs=1e-3)
    assert results["results"]["choose"]["acc,none"] == 1
    for sample, question in zip(results["samples"]["go_on"], CHOICES, strict=True):
        body = {"prompt": question["question"], "temperature": 0, "max_tokens": 12, "stop": ["\n"]}
        answer = server.ask("/v1/completions", body, headers={"Authorization": "Bearer secret"})
        assert sample["resps"][0][0] == answer["choices"][0]["text"]


def likelihood_of(server, context, continuation):
    """By the server's own log-probabilities of a prompt, a byte a token."""
    body = {"prompt": context + continuation, "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = server.ask("/v1/completions", body, headers={"Authorization": "Bearer secret"})
    return sum(answer["choices"][0]["logprobs"]["token_logprobs"][-len(continuation.encode()) :])
