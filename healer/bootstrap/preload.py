"""What the parts of `healer up` import, imported once before they are forked."""

from importlib import import_module

from healer.rulebook.proven import code_digest

#: Each brings many others. What only some sites use is left out: the part that needs it imports it.
_MODULES = (
    "workers.app",  # before Celery, as it tells it what to leave alone
    "workers.tasks",
    "healer.bootstrap.senses",
    "healer.bootstrap.web",
    "celery.apps.worker",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "redis",  # kombu hides that it is missing
    "kombu.transport.redis",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "httpx",
)


def preload() -> None:
    for name in _MODULES:
        import_module(name)
    code_digest()
