"""The audit chain: sealed, signed, verified, exported. Pure: rows and lines in, findings out."""

from healer.audit.chain import canonical, extend, genesis, link, moment, record_bytes, sign_checkpoint
from healer.audit.export import (
    ExportError,
    Head,
    Header,
    Trail,
    checkpoint_line,
    export,
    export_lines,
    gap_text,
    read_checkpoints,
    report,
    verify_export,
)
from healer.audit.sealer import Sealer
from healer.audit.verify import Report, examine
from healer.audit.witness import Deliveries, report_against
