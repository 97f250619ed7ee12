"""What one detector looks at, without the senses around it."""

from datetime import datetime
from typing import Any

from healer.detection.protocol import TickInput
from healer.model import Catalogue
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry

#: No measurements.
UNMEASURED = Telemetry("none", Catalogue())


def look(
    now: datetime, telemetry: Telemetry = UNMEASURED, steps: StepTimes | None = None, **more: Any
) -> TickInput:
    return TickInput(now, telemetry, steps if steps is not None else StepTimes("none"), **more)
