"""The routes of a recording that carry samples."""

COLUMNAR = "signals/metrics"
TEXT = "signals/openmetrics"
REMOTE_WRITE = "signals/prometheus/write"
NVIDIA_SMI = "signals/nvidia-smi"
OTLP_METRICS = "signals/otlp/v1/metrics"
STEP_TIMES = "signals/step-times"
CHECKPOINTS = "signals/checkpoints"

#: Samples wait for the next tick; nothing has to be walked when they come.
SAMPLES = frozenset({COLUMNAR, TEXT, REMOTE_WRITE, NVIDIA_SMI, OTLP_METRICS, STEP_TIMES})
MEASURED = SAMPLES | {CHECKPOINTS}
