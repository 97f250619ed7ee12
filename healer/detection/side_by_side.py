"""How unusual the nodes of a class are in each way of looking at them, with what each score comes from."""

import numpy as np

from healer.detection.training import DECIDES, FeatureRow, Fitted, own_of, whole
from healer.detection.ways import WAYS, Floats, largest, shares
from healer.model.unusual import FeatureShare, Unusual, WayScore

#: Features named for each score.
SHOWN = 5


def side_by_side(fitted: Fitted, row: FeatureRow) -> list[Unusual]:
    """Of each node of this moment that the model can score."""
    model = fitted.model
    rows, own = own_of(model, whole(row))
    if not len(rows):
        return []
    scores = {way: fitted.ways[way].score(own) for way in WAYS}
    parts = {way: shares(fitted.ways[way].parts(own)) for way in WAYS}
    middle = {way: float(np.median(scores[way])) for way in WAYS}

    def way_score(way: str, place: int) -> WayScore:
        return WayScore(
            way=way,
            score=_shown(scores[way][place]),
            threshold=_shown(model.limit(way).threshold),
            middle=_shown(middle[way]),
            decides=way == DECIDES,
            parts=_parts(model.features, parts[way][place], own[place]),
        )

    return [
        Unusual(
            cluster=row.cluster,
            node=row.nodes[at],
            at=row.at,
            hardware=model.hardware,
            load=model.load,
            model=model.id,
            scored=len(rows),
            ways=tuple(way_score(way, place) for way in WAYS),
        )
        for place, at in enumerate(rows.tolist())
    ]


def _parts(features: tuple[str, ...], share: Floats, own: np.ndarray) -> tuple[FeatureShare, ...]:
    return tuple(
        FeatureShare(feature=features[at], share=_shown(share[at]), away=_shown(own[at]))
        for at in largest(share, SHOWN)
    )


def _shown(value: float) -> float:
    return round(float(value), 4)
