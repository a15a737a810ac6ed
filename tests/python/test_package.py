"""The package as a whole: what importing it loads, the torch it wants, and how transformers gets to know it."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gated_sparse_attention as gsa
from gated_sparse_attention import _library, _transformers

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("GSA_LIBRARY")  # with it, the package of the tree
needs_transformers = pytest.mark.skipif(not _transformers.usable(), reason="needs transformers 5.11 or newer")


def python(code, **environment):
    """What a new process prints, with this package and its library; it must end well."""
    path = [str(ROOT / "python")] if LIBRARY else []
    environment = {**os.environ, "PYTHONPATH": ":".join([*path, os.environ.get("PYTHONPATH", "")]), **environment}
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_importing_it_imports_no_transformers():
    loaded = python("import sys, gated_sparse_attention; print(*[m for m in sys.modules if 'transformers' in m])")
    assert loaded == "gated_sparse_attention._transformers"


KNOWN = """
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model("gated_sparse_attention")
print(type(config).__name__, AutoModelForCausalLM._model_mapping[type(config)].__name__,
      type(AutoConfig.for_model("gsa")).__name__, any("_Watcher" in repr(f) for f in sys.meta_path))
"""


@needs_transformers
@pytest.mark.parametrize(
    "first",
    [
        "import gated_sparse_attention; from transformers import AutoModelForCausalLM",
        "from transformers import AutoModelForCausalLM; import gated_sparse_attention",
        "import gated_sparse_attention; import transformers.modeling_utils",
    ],
)
def test_transformers_knows_it_in_any_order_of_imports(first):
    known = "GatedSparseAttentionConfig GatedSparseAttentionForCausalLM GatedSparseAttentionConfig False"
    assert python(f"import sys; {first}\n{KNOWN}") == known


@needs_transformers
def test_one_watcher_is_enough():
    """However often the package is imported; and two of them, of whatever origin, do not ask each other for ever."""
    code = """
import importlib, sys, gated_sparse_attention as gsa
watchers = lambda: [finder for finder in sys.meta_path if "_Watcher" in repr(finder)]
importlib.reload(gsa._transformers)
importlib.reload(gsa)
print(len(watchers()))
sys.meta_path.insert(0, gsa._transformers._Watcher(lambda: print("second")))
from transformers import AutoConfig
print(type(AutoConfig.for_model("gated_sparse_attention")).__name__, len(watchers()))
"""
    assert python(code).splitlines() == ["1", "second", "GatedSparseAttentionConfig 0"]


@needs_transformers
@pytest.mark.parametrize("first", ["gated_sparse_attention", "transformers.models.auto.modeling_auto"])
def test_transformers_is_imported_where_our_part_of_it_cannot_be(first):
    """With a warning that says why."""
    code = f"""
import sys, warnings
sys.modules["gated_sparse_attention.huggingface"] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import {first}
    import gated_sparse_attention
    from transformers import AutoModel
print(AutoModel.__name__, *[w.message for w in caught if "not registered" in str(w.message)])
"""
    said = python(code)
    assert said.startswith("AutoModel gated_sparse_attention: its models are not registered with transformers")
    assert said.endswith("None in sys.modules")


@needs_transformers
def test_a_model_of_the_same_name_stays_what_it_is():
    code = """
from transformers import AutoConfig, PreTrainedConfig
class Other(PreTrainedConfig):
    model_type = "gsa"
AutoConfig.register("gsa", Other)
import gated_sparse_attention
print(type(AutoConfig.for_model("gsa")).__name__, type(AutoConfig.for_model("gated_sparse_attention")).__name__)
"""
    assert python(code) == "Other GatedSparseAttentionConfig"


@needs_transformers
def test_a_file_of_a_model_of_the_same_name_is_refused():
    from_dict = gsa.huggingface.GatedSparseAttentionConfig.from_dict
    with pytest.raises(ValueError, match="'config.json': expected the key 'sparse_attention', .* got none"):
        from_dict({"model_type": "gsa", "num_slots": 64, "hidden_size": 512})
    assert from_dict({"model_type": "gsa", "sparse_attention": False}).model_type == "gated_sparse_attention"


@needs_transformers
def test_transformers_stays_whole_while_it_is_watched():
    code = """
import gated_sparse_attention, inspect, sys
try:
    import transformers.no_such_module
except ModuleNotFoundError as error:
    print(error)
import transformers.utils.logging as module
print(type(module.__loader__).__name__, type(module.__spec__.loader).__name__)
print("def get_logger" in inspect.getsource(module))
"""
    said, loaders, source = python(code).splitlines()
    assert said == "No module named 'transformers.no_such_module'"
    assert loaders == "SourceFileLoader SourceFileLoader" and source == "True"


@pytest.mark.parametrize("built, fits", [("2.4.1+cu121", False), (torch.__version__, True), ("2.13", None)])
def test_the_torch_it_was_built_with(tmp_path, built, fits):
    library = tmp_path / "libgsa.so"
    library.with_suffix(".json").write_text(json.dumps({"torch": built}))
    if fits is None:
        _library.check_torch(library, "2.13.1+cpu")  # within a minor version
        with pytest.raises(ImportError, match="expected torch 2.13, .* got 2.130.0"):
            _library.check_torch(library, "2.130.0")
    elif fits:
        _library.check_torch(library, torch.__version__)
    else:
        with pytest.raises(ImportError, match=r"pip install 'torch==2\.4\.\*'; .* ninja && pip install --no-build-isolation"):
            _library.check_torch(library, torch.__version__)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '"2.13"', '{"torch": 2.13}', "", "\xff"])
def test_a_damaged_note_of_the_torch_it_was_built_with(tmp_path, text):
    library = tmp_path / "libgsa.so"
    library.with_suffix(".json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ImportError, match=r"libgsa\.json': expected an object whose 'torch' is .* got '.*'; install or build"):
        _library.check_torch(library, torch.__version__)


def test_a_library_for_another_torch_is_refused_before_it_is_loaded(tmp_path):
    shutil.copy(_library.path, tmp_path / "libgsa.so")
    (tmp_path / "libgsa.json").write_text('{"torch": "2.4.1"}')
    said = python(
        "try:\n  import gated_sparse_attention\nexcept ImportError as error:\n  print(error)",
        GSA_LIBRARY=str(tmp_path / "libgsa.so"),
    )
    assert f"expected torch 2.4, with which {tmp_path / 'libgsa.so'} was built (2.4.1), got {torch.__version__}" in said
    assert "pip install" in said and "undefined symbol" not in said


@pytest.mark.parametrize("text, reason", [("", "file too short"), ("no library, as it says " * 9, "invalid ELF header")])
def test_a_library_that_cannot_be_loaded_is_named(tmp_path, text, reason):
    library = tmp_path / "libgsa.so"
    library.write_text(text)
    library.with_suffix(".json").write_text(json.dumps({"torch": torch.__version__}))
    said = python(
        "try:\n  import gated_sparse_attention\nexcept ImportError as error:\n  print(error)", GSA_LIBRARY=str(library)
    )
    assert f"expected {library} to be a library that can be loaded with torch {torch.__version__}, got: {library}: {reason}; " in said
    assert "pip install --no-build-isolation" in said


def test_a_library_without_a_note_of_its_torch_is_said(tmp_path):
    (tmp_path / "libgsa.so").symlink_to(_library.path)
    with pytest.warns(UserWarning, match=r"expected .*libgsa\.json, which says what torch .* got none: .* torch 2\.99"):
        _library.check_torch(tmp_path / "libgsa.so", "2.99")


def test_an_editable_install_has_its_library_in_another_folder(tmp_path):
    """Python files of the clone, the library in site-packages, and both folders on the package's path."""
    for file in (_library.path, _library.path.with_suffix(".json")):
        (tmp_path / file.name).symlink_to(file)
    code = f"""
import importlib.util, sys
folders = [{str(ROOT / "python/gated_sparse_attention")!r}, {str(tmp_path)!r}]
spec = importlib.util.spec_from_file_location(
    "gated_sparse_attention", folders[0] + "/__init__.py", submodule_search_locations=folders)
sys.modules[spec.name] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
print(package._library.path)
"""
    assert python(code, GSA_LIBRARY="") == str(tmp_path / "libgsa.so")


installed = pytest.mark.skipif(LIBRARY is not None, reason="the package of the tree, not the installed one")


@installed
def test_what_pip_is_asked_for():
    minor = ".".join(torch.__version__.split(".")[:2])
    wanted = [name for name in importlib.metadata.requires("gated-sparse-attention") if "extra" not in name]
    assert sorted(wanted) == ["numpy", "safetensors", f"torch=={minor}.*"]
    assert importlib.metadata.version("gated-sparse-attention") in (ROOT / "include/gsa/version.h").read_text()


@installed
def test_the_installed_library_brings_what_it_needs():
    assert _library.path.parent == Path(gsa.__file__).parent
    maps = python("import gated_sparse_attention; print(open('/proc/self/maps').read())")
    loaded = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
    assert [path for path in loaded if "libhwy.so" in path] == [str(_library.path.parent / "libhwy.so.1")]
    assert "Apache" in (_library.path.parent / "libhwy.LICENSE").read_text()  # which asks to go along
    assert len([path for path in loaded if "libgomp" in path or "libiomp5" in path]) == 1  # torch's alone
    run_path = subprocess.run(["readelf", "-d", _library.path], text=True, capture_output=True, check=True).stdout
    assert "[$ORIGIN:$ORIGIN/../torch/lib]" in run_path and "libgomp" not in run_path


def test_the_readme_example_runs():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    example = next(part for part in page.split("```python\n")[1:] if "import gated_sparse_attention" in part)
    python(example.split("```")[0])
