"""Collect: the node's logs and NVIDIA's bug report in one file, fetched and kept. Takes no capacity."""

from hashlib import sha256

from healer.actions import keyed
from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.nodes import TESTS_AGAIN_S
from healer.model import Bundle, EvidenceFile
from healer.ports.evidence_book import EvidenceBroken
from healer.ports.node_exec import NodeExec

#: Pieces fetched at one visit (256 KB each, about 0.2 s): a worker's thread is not kept for a large file.
PIECES = 16
#: For a person, where healer does not come to nodes.
_BY_HAND = "dmesg; nvidia-smi -q; nvidia-bug-report.sh"


def _probe(ctx: Context) -> Result | None:
    if ctx.nodes is not None and ctx.evidence is None:
        return Failed(text="healer has no place to keep evidence here: nothing was collected.", final=True)
    return keyed.probe(ctx, _fetched, _BY_HAND)


def _do(ctx: Context) -> Result | None:
    return keyed.begin(ctx, lambda nodes: nodes.start_collection(ctx.node, ctx.key))


def _verify(ctx: Context) -> Result:
    return keyed.ended(ctx, _fetched, _BY_HAND)


def _fetched(ctx: Context, nodes: NodeExec) -> Result:
    """Goes on where the last visit, or a worker that died, left off."""
    book = ctx.evidence
    assert book is not None  # the probe has looked
    bundle = nodes.collection(ctx.node, ctx.key)
    if bundle is None:
        return Again(text=f"The logs of {ctx.node} are being collected", after_s=TESTS_AGAIN_S)
    file = _file(ctx, bundle)
    have = book.stored(file.id)
    for _ in range(PIECES):
        if have >= bundle.size_bytes:
            break
        ctx.fence()
        data = nodes.read_collection(ctx.node, ctx.key, have)[: bundle.size_bytes - have]
        if not data:
            return Failed(text=f"The file on {ctx.node} ended after {have} of {bundle.size_bytes} bytes.")
        book.add(file, have, data)
        have += len(data)
    if have < bundle.size_bytes:
        return Again(text=f"{ctx.node}: {have} of {bundle.size_bytes} bytes are here", after_s=0.1)
    try:
        book.finish(file)
    except EvidenceBroken as error:
        return Failed(text=str(error))
    text = f"{ctx.node}: {bundle.size_bytes / 1e6:.1f} MB are kept as {file.id} ({'; '.join(bundle.parts)})"
    return Done(text=text, data={"evidence": file.id, "bytes": bundle.size_bytes, "sha256": bundle.sha256})


def _file(ctx: Context, bundle: Bundle) -> EvidenceFile:
    """The same file for whoever takes the run up."""
    return EvidenceFile(
        id=f"e{sha256(f'{ctx.key}|{bundle.sha256}'.encode()).hexdigest()[:23]}",
        cluster=ctx.run.cluster,
        node=ctx.node,
        run=ctx.run.id,
        incident=ctx.run.incident,
        name=f"{ctx.node}-{ctx.began_at:%Y%m%dT%H%M%SZ}.txt.gz",
        at=ctx.began_at,
        bundle=bundle,
    )


COLLECT = Action(probe=_probe, do=_do, verify=_verify)
