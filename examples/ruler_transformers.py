"""RULER for a model of transformers, with the prompts and scores of `gsa ruler`.

    python examples/ruler_transformers.py run MODEL FOLDER -- --lengths 4096,8192 --samples 20 --essays essays.txt
    python examples/ruler_transformers.py answer MODEL FOLDER    the second of its three steps alone
    python examples/ruler_transformers.py count MODEL            what `gsa ruler --counter` calls

`run` has `gsa ruler --write` make prompts to length by the model's own tokenizer, answers them, and has
`gsa ruler --score` score them into FOLDER/index.html. Answers that are there already are kept: a run that was cut off
goes on. The program is found in PATH, or named by GSA_PROGRAM.
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys


def count(tokenizer, lines, out):
    """For every JSON string on a line, its number of tokens on a line."""
    for line in lines:
        print(len(tokenizer(json.loads(line))["input_ids"]), file=out, flush=True)


def answer(generate, folder: pathlib.Path):
    """Asks generate(prompt, max_new_tokens) what has no prediction yet. Each is on the disk before the next one."""
    (folder / "predictions").mkdir(exist_ok=True)
    for prompts in sorted((folder / "prompts").glob("*.jsonl")):
        file = folder / "predictions" / prompts.name
        text = file.read_text("utf-8") if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # without a line that was cut off; replaced in one step, so that no answer is ever lost
            beside = file.with_suffix(".tmp")
            beside.write_text(whole, "utf-8")
            os.replace(beside, file)
        done = {json.loads(line)["index"] for line in whole.split("\n")[:-1]}
        with prompts.open(encoding="utf-8") as lines, file.open("a", encoding="utf-8") as out:
            for sample in map(json.loads, lines):
                if sample["index"] in done:
                    continue
                text = generate(sample["prompt"], sample["max_new_tokens"])
                print(json.dumps({"index": sample["index"], "prediction": text}), file=out, flush=True)
        print(prompts.stem, file=sys.stderr)


def load(name):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(name, dtype="auto").to(device).eval()

    @torch.inference_mode()
    def generate(prompt, max_new_tokens):
        inputs = tokenizer(prompt, return_tensors="pt").to(device)
        out = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        return tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    return generate


def main(command, name, *rest):
    if command == "count":
        from transformers import AutoTokenizer

        return count(AutoTokenizer.from_pretrained(name), sys.stdin, sys.stdout)
    if command == "answer":
        return answer(load(name), pathlib.Path(rest[0]))
    if command != "run":
        raise SystemExit(__doc__)
    gsa = os.environ.get("GSA_PROGRAM", "gsa")
    counter = shlex.join([sys.executable, __file__, "count", name])
    options = [option for option in rest[1:] if option != "--"]
    subprocess.run([gsa, "ruler", "--write", rest[0], "--counter", counter, *options], check=True)
    answer(load(name), pathlib.Path(rest[0]))
    subprocess.run([gsa, "ruler", "--score", rest[0]], check=True)


if __name__ == "__main__":
    if len(sys.argv) < 3 or (sys.argv[1] != "count" and len(sys.argv) < 4):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
