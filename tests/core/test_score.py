"""The figures by which predictions are judged."""

from __future__ import annotations

import pytest

from stepscope.core.score import quantile, score


def test_a_score_counts_sizes_and_keeps_the_sign_in_the_bias() -> None:
    """Five errors, two of them within 6 %, three within 15 %."""
    found = score([0.05, -0.06, 0.10, -0.20, 0.30])
    assert (found.n, found.median_abs_error) == (5, 0.10)
    assert found.p90_abs_error == pytest.approx(0.26)
    assert (found.share_within_6pct, found.share_within_15pct) == (0.4, 0.6)
    assert found.bias == pytest.approx(0.038)


def test_quantiles_lie_between_neighbours() -> None:
    """As numpy's default does it."""
    assert quantile([4.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.25) == 1.25
    assert quantile([7.0], 0.9) == 7.0


def test_no_predictions_cannot_be_scored() -> None:
    """Rather an error than a division by zero."""
    with pytest.raises(ValueError, match="no predictions"):
        score([])
