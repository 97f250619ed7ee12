"""The jobs that incidents hit (`healer.model.hit.JobHit`), as their documents hold them."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from healer.adapters.postgres.tables import incidents

#: Of one incident, as a list; empty where nothing is known to be hit.
hit_list = sa.func.coalesce(incidents.c.doc["hit"], sa.text("'[]'::jsonb"))


def hit_rows() -> sa.TableValuedAlias:
    """A row for each, in the column `value`; joined to the incidents."""
    return sa.func.jsonb_array_elements(hit_list).table_valued(sa.column("value", JSONB), name="hit")
