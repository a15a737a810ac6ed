"""Damaged model folders: load_model refuses what the program refuses, in its words."""

import json
import re
import shutil
import subprocess

import pytest
import torch
from configs import model
from conftest import BUILD
from safetensors.torch import load_file, save_file

import gated_sparse_attention as gsa

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard(folder):
    """The same model in two files and an index."""
    state = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(state)
    place = {name: SHARDS[n % 2] for n, name in enumerate(names)}
    for file in SHARDS:
        save_file({name: state[name] for name in names if place[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": place}))


@pytest.fixture(scope="session")
def sound(tmp_path_factory):
    """sound(sharded): a folder that is whole, for a test to damage a copy of it."""
    single, sharded = (tmp_path_factory.mktemp(name) for name in ("single", "sharded"))
    made = gsa.GatedSparseForCausalLM(model(layers=1))
    for folder in (single, sharded):
        gsa.save_model(made, folder)
        save_file({"tokens": torch.zeros(1, 8, dtype=torch.int64)}, folder / "tokens.safetensors")
    shard(sharded)
    return lambda is_sharded: sharded if is_sharded else single


def both_refuse(folder, expected, kind=ValueError, programs=None):
    """programs: what the program says where its reader of a file says more."""
    with pytest.raises(kind, match=expected):
        gsa.load_model(folder)
    done = subprocess.run([BUILD / "gsa_model_probe", "run", folder], text=True, errors="replace", capture_output=True,
                          check=False)  # fmt: skip
    assert done.returncode != 0 and re.search(programs or expected, done.stdout + done.stderr), done.stderr


def of_index(change):
    def damage(folder):
        index = json.loads((folder / INDEX).read_text())
        change(index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index))

    return damage


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def put_in_both(folder):
    """A tensor of the first shard in the second, too."""
    first, second = (load_file(folder / name) for name in SHARDS)
    save_file(second | dict([next(iter(first.items()))]), folder / SHARDS[1])


def test_the_sound_ones_are_read(sound):
    for name, tensor in gsa.load_model(sound(False)).state_dict().items():
        assert torch.equal(gsa.load_model(sound(True)).state_dict()[name], tensor)


@pytest.mark.parametrize("damage, expected", [
    (lambda f: shutil.copy(f / SHARDS[0], f / WEIGHTS), f"expected one of {WEIGHTS} and {INDEX}, got both"),
    (lambda f: (f / INDEX).unlink(), f"expected {WEIGHTS} or {INDEX}, got neither"),
    (write(INDEX, "{"), f"{INDEX}': expected JSON, got "),
    (write(INDEX, '{"weight_map": {}, "weight_map": {}}'), 'expected every key once, got a second "weight_map"'),
    (write(INDEX, "[" * 2000 + "]" * 2000), "JSON"),
    (write(INDEX, "{}"), "expected an object with an object 'weight_map', got an object of 0 keys"),
    (write(INDEX, "[]"), r"expected an object with an object 'weight_map', got \[\]"),
    (write(INDEX, '{"weight_map": {}, "more": 1}'), 'expected the keys weight_map and metadata, got "more"'),
    (write(INDEX, '{"weight_map": {"a": 3}}'), 'expected a plain file name for "a", got 3'),
    (write(INDEX, '{"weight_map": {"a": "../x"}}'), 'expected a plain file name for "a", got "../x"'),
    (write(INDEX, '{"weight_map": {"a": ".."}}'), r'expected a plain file name for "a", got "\.\."'),
    (of_index(lambda places: places.update({"model.norm.weight": SHARDS[places["model.norm.weight"] == SHARDS[0]]})),
     f"expected the tensors that {INDEX} places there, got also \"model.norm.weight\"|expected tensor "
     f"\"model.norm.weight\", by {INDEX}, got none"),
    (of_index(lambda places: places.update(more=SHARDS[0])), f'expected tensor "more", by {INDEX}, got none'),
    (put_in_both, f"expected the tensors that {INDEX} places there, got also "),
], ids=["both", "neither", "cut-index", "twice", "deep", "no-map", "list", "key", "number", "outside", "parent", "misplaced",
        "absent", "in-two-shards"])  # fmt: skip
def test_damaged_sharded_folders(damage, expected, sound, tmp_path):
    folder = shutil.copytree(sound(True), tmp_path / "folder")
    damage(folder)
    both_refuse(folder, expected)


@pytest.mark.parametrize("sharded, name", [(True, SHARDS[1]), (False, "config.json"), (True, "config.json")])
def test_missing_files(sharded, name, sound, tmp_path):
    folder = shutil.copytree(sound(sharded), tmp_path / "folder")
    (folder / name).unlink()
    both_refuse(folder, f"{name}': cannot open it: No such file or directory", FileNotFoundError)


def test_weights_of_another_format(sound, tmp_path):
    folder = shutil.copytree(sound(False), tmp_path / "folder")
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    both_refuse(folder, f"expected {WEIGHTS} or {INDEX}, got neither")


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_weights_that_were_cut(keep, sound, tmp_path):
    folder = shutil.copytree(sound(False), tmp_path / "folder")
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:keep])
    both_refuse(folder, f"{WEIGHTS}': expected a safetensors file, got ", programs=f"{WEIGHTS}': expected .*, got ")


@pytest.mark.parametrize("text, expected", [  # in Latin-1
    ("{", "config.json': expected JSON, got "),
    ("[]", r"config.json': expected an object, got \[\]"),
    ('{"vocab_size": 1, "vocab_size": 2}', 'expected every key once, got a second "vocab_size"'),
    ('{"rms_norm_eps": NaN}', "config.json': expected JSON, got "),
    ("\xff", "config.json': expected JSON"),
])  # fmt: skip
def test_a_damaged_config(text, expected, sound, tmp_path):
    folder = shutil.copytree(sound(False), tmp_path / "folder")
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    both_refuse(folder, expected)
