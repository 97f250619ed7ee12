"""What healer remembers, chained so that nobody changes it unseen. Pure: rows and lines in, findings out."""

from healer.audit.chain import (
    Link,
    Signer,
    canonical,
    extend,
    genesis,
    link,
    moment,
    record_bytes,
    sign_checkpoint,
    signature_holds,
    storable,
    storable_text,
)
from healer.audit.export import (
    ExportError,
    Head,
    Header,
    checkpoint_line,
    export_lines,
    read_checkpoints,
    verify_export,
)
from healer.audit.verify import Report, examine, verify

__all__ = [
    "ExportError",
    "Head",
    "Header",
    "Link",
    "Report",
    "Signer",
    "canonical",
    "checkpoint_line",
    "examine",
    "export_lines",
    "extend",
    "genesis",
    "link",
    "moment",
    "read_checkpoints",
    "record_bytes",
    "sign_checkpoint",
    "signature_holds",
    "storable",
    "storable_text",
    "verify",
    "verify_export",
]
