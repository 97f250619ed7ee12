"""The audit chain: sealed, signed, verified, exported. Pure: rows and lines in, findings out."""

from healer.audit.chain import (
    Signer,
    canonical,
    extend,
    genesis,
    link,
    moment,
    record_bytes,
    sign_checkpoint,
    signature_holds,
)
from healer.audit.export import (
    ExportError,
    Head,
    Header,
    Trail,
    checkpoint_line,
    export,
    export_lines,
    read_checkpoints,
    report,
    verify_export,
)
from healer.audit.sealer import Sealer
from healer.audit.verify import Report, examine
from healer.audit.witness import Deliveries, report_against

__all__ = [
    "Deliveries",
    "ExportError",
    "Head",
    "Header",
    "Report",
    "Sealer",
    "Signer",
    "Trail",
    "canonical",
    "checkpoint_line",
    "examine",
    "export",
    "export_lines",
    "extend",
    "genesis",
    "link",
    "moment",
    "read_checkpoints",
    "record_bytes",
    "report",
    "report_against",
    "sign_checkpoint",
    "signature_holds",
    "verify_export",
]
