"""Which history makes no model."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from healer.detection.training import NoModel, train
from tests.support.feature_history import history

pytestmark = pytest.mark.heavy

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_model_that_misses_injected_deviations_is_refused() -> None:
    """Half of the samples deviate in many features, so that injected deviations look usual."""
    rows = history(NOW - timedelta(days=3), NOW)
    train(rows, len(rows), {})
    random = np.random.default_rng(4)
    for row in rows[::2]:
        row.matrix[:] += 20 * random.choice((-1.0, 0.0, 1.0), row.matrix.shape)
    with pytest.raises(NoModel, match="of the injected deviations"):
        train(rows, len(rows), {})
