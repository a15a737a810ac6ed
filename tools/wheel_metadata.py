"""What the wheel depends on, for scikit-build-core: the torch that its library is compiled against.

torch's C++ interface holds within a minor version, so a wheel that was built with 2.13.0 asks for 2.13.*.
"""

from importlib.metadata import PackageNotFoundError, version


def dynamic_metadata(field, settings=None, project=None):
    if field != "dependencies":
        raise ValueError(f"wheel_metadata: expected the field dependencies, got {field}")
    try:
        major, minor = version("torch").split(".")[:2]
    except PackageNotFoundError:
        raise SystemExit(
            "gated-sparse-attention: expected torch, against which its library is compiled, got none: install it first, "
            "or leave --no-build-isolation out"
        ) from None
    return [f"torch=={major}.{minor}.*", "numpy", "safetensors"]  # for model folders, the latter two
