"""From observations to the present picture, and to windows of samples."""

from healer.observations.fault_history import GpuMap
from healer.observations.node_picture import NodePicture
from healer.observations.picture import Picture, Standing
