"""The openai package before gsa serve."""

import time

import openai
import pytest
from serving import Server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        yield client


GREEDY = {"model": "book", "temperature": 0, "max_tokens": 24}
CHAT = [{"role": "system", "content": "Speak of the sea."}, {"role": "user", "content": "the keeper"}]


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["book"]
    assert client.models.retrieve("book").object == "model"


def test_completions_at_once_and_streamed(client):
    whole = client.completions.create(prompt="the keeper and", **GREEDY)
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.completions.create(prompt="the keeper and", stream=True,
                                            stream_options={"include_usage": True}, **GREEDY))  # fmt: skip
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_chats_at_once_and_streamed(client):
    whole = client.chat.completions.create(messages=CHAT, **GREEDY)
    assert whole.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(messages=CHAT, stream=True, **GREEDY))
    assert chunks[0].choices[0].delta.content == ""
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    with client.chat.completions.stream(messages=CHAT, **GREEDY) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "content.delta")
    assert streamed == whole.choices[0].message.content


def test_several_texts_of_several_prompts(client):
    answer = client.completions.create(model="book", prompt=["the lamp", "the tide"], n=2, seed=3, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    again = client.completions.create(model="book", prompt=["the lamp", "the tide"], n=2, seed=3, max_tokens=8)
    assert [choice.text for choice in again.choices] == [choice.text for choice in answer.choices]


def test_logprobs_in_both_forms(client):
    logprobs = client.completions.create(prompt="the bell", logprobs=3, **GREEDY).choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert all(len(top) == 3 and value == pytest.approx(max(top.values()))
               for value, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True))  # fmt: skip
    content = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=2, **GREEDY).choices[0].logprobs
    for token in content.content:
        assert len(token.top_logprobs) == 2 and token.logprob == pytest.approx(token.top_logprobs[0].logprob)
        assert bytes(token.bytes).decode(errors="replace") == token.token


def test_errors_are_the_package_s_own(client, server):
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="book", prompt="x", temperature=9)
    assert bad.value.param == "temperature" and bad.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="book", prompt="x", max_tokens=10**6)
    assert long.value.code == "context_length_exceeded"
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()


def test_a_stream_that_is_closed_ends_its_text(model):
    with Server(model, "--name", "book", "--extend", 1) as server:  # for a text that does not end before
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            with client.completions.create(model="book", prompt="the", max_tokens=100_000, stream=True,
                                           extra_body={"ignore_eos": True}) as stream:  # fmt: skip
                next(iter(stream))
            for _ in range(600):
                if (metrics := server.metrics())["gsa_num_requests_running"] == 0:
                    break
                time.sleep(0.05)
        assert metrics["gsa_num_requests_running"] == 0
        assert metrics["gsa_requests_cancelled_total"] == 1
