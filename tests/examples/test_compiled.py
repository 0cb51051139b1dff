"""Every program that the examples run, compiled: the same results as on the reference interpreter."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tempo as tp

EXAMPLES = Path(__file__).parents[2] / "examples"
# These compile their programs themselves, and have tests of their own.
OWN = ("demo", "character_model", "ppo_cartpole", "selective_scan")
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in OWN)


def numbers(result: tp.Result) -> dict[str, Any]:
    """Outputs and emitted values by name."""
    emitted = {name: np.array([r.value for r in records]) for name, records in result.emits.items()}
    return {**result.outputs, **emitted}


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_examples(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = tp.Program.evaluate
    compared: list[str] = []

    def both(prog: tp.Program, bounds: Any = None, seed: int = 0, **inputs: Any) -> tp.Result:
        expected = evaluate(prog, bounds, seed, **inputs)
        # Some run the same program for several inputs: once is enough.
        if prog.name not in compared:
            compared.append(prog.name)
            found = numbers(prog.compile(bounds, backend, seed=seed)(**inputs))
            wanted = numbers(expected)
            assert found.keys() == wanted.keys()
            for result, array in wanted.items():
                assert found[result].dtype == array.dtype
                np.testing.assert_allclose(found[result], array, rtol=2e-4, atol=1e-5, err_msg=result)
        return expected

    monkeypatch.setattr(tp.Program, "evaluate", both)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert compared == [name]
