"""Functions that joblib calls in slots, and fits of scikit-learn."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_info

from taskmesh import current_task
from taskmesh.joblib import register


def square(x: int) -> int:
    return x * x


def process() -> int:
    return os.getpid()


def at(array: Any, *position: int) -> float:
    return float(array[position])


def sum_at(position: int, *arrays: Any) -> float:
    return float(sum(array[position] for array in arrays))


def fail_at(x: int, bad: int) -> int:
    if x == bad:
        raise LookupError(f"no {x}")
    return x


def stay(started: Path) -> None:
    """Run until killed; the file says that it runs."""
    started.touch()
    threading.Event().wait()


def die_once(x: int) -> int:
    """Kill the slot at the first attempt of one of the batches."""
    if x == 3 and current_task().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def nested(n_jobs: int, depth: int, x: int) -> int:
    """Sum x and the like below it, by calls within calls."""
    if not depth:
        return x
    below = (delayed(nested)(n_jobs, depth - 1, x + i) for i in range(3))
    return sum(Parallel(n_jobs=n_jobs)(below))


def nested_processes(n_jobs: int) -> tuple[int, list[int]]:
    return os.getpid(), Parallel(n_jobs=n_jobs)(delayed(process)() for _ in range(4))


def task_with_calls() -> tuple[int, list[int]]:
    """Call by joblib in a task that joblib knows nothing of."""
    register()
    with parallel_config("taskmesh", n_jobs=2):
        return nested_processes(2)


def pool_threads() -> set[int]:
    """Return how many threads this process's pools of threads have; numpy has one."""
    return {pool["num_threads"] for pool in threadpool_info()}


def _data() -> tuple[Any, Any]:
    from sklearn.datasets import make_classification

    return make_classification(n_samples=300, n_features=12, random_state=3)


def grid_search(n_jobs: int) -> Any:
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    found = GridSearchCV(SVC(), {"C": [0.1, 1, 10], "gamma": [0.01, 0.1]}, n_jobs=n_jobs).fit(*_data())
    return found.best_params_, found.cv_results_["mean_test_score"].tolist()


def cross_validation(n_jobs: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    return cross_val_score(LogisticRegression(), *_data(), cv=8, n_jobs=n_jobs).tolist()


def forests(n_jobs: int) -> Any:
    """Fit forests, each of which is parallel, too."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV

    forest = RandomForestClassifier(n_estimators=12, random_state=5, n_jobs=2)
    found = GridSearchCV(forest, {"max_depth": [2, 6]}, cv=3, n_jobs=n_jobs).fit(*_data())
    importances = found.best_estimator_.feature_importances_
    return found.best_params_, found.cv_results_["mean_test_score"].tolist(), np.asarray(importances).tolist()


def importances(n_jobs: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.inspection import permutation_importance

    forest = RandomForestClassifier(n_estimators=20, random_state=5, n_jobs=n_jobs).fit(*_data())
    found = permutation_importance(forest, *_data(), n_repeats=4, random_state=1, n_jobs=n_jobs)
    return forest.predict_proba(_data()[0]).tolist(), found.importances.tolist()


FITS: dict[str, Callable[[int], Any]] = {
    fit.__name__: fit for fit in (grid_search, cross_validation, forests, importances)
}
