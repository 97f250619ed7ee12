"""What each verb, check and wait of a playbook does, in a line; docs/playbooks.md has the whole of it."""

from typing import NamedTuple

from healer.model import Verb


class VerbWords(NamedTuple):
    """`verified`: when the step is done; `undone`: what taking the run back does, empty where it stays."""

    does: str
    verified: str
    undone: str = ""


VERB_WORDS = {
    Verb.drain: VerbWords(
        "Sets DRAIN with healer's own reason.", "That reason is read back from Slurm.", "The drain is lifted."
    ),
    Verb.resume: VerbWords("Lifts healer's own drain, and only that.", "The node is in service."),
    Verb.undrain: VerbWords("Clears DRAIN and nothing else.", "The node is not drained any more."),
    Verb.reserve: VerbWords(
        "Reserves the node for healer's tests, then lifts the drain.",
        "Slurm shows the reservation, and the node answers.",
        "The node is drained again, and the reservation ends.",
    ),
    Verb.reboot: VerbWords(
        "Reboots the empty node through Slurm.",
        "It has another boot time, has registered, and is drained again.",
        "A reboot that still waits is taken back.",
    ),
    Verb.power_cycle: VerbWords(
        "Asks the node's BMC for a power cycle, once.", "It has booted since, and its power is on."
    ),
    Verb.down: VerbWords("Sets the drained node DOWN, so that stuck jobs end.", "No job holds the node."),
    Verb.requeue: VerbWords(
        "Requeues the job, and asks Slurm to start it.", "It runs again, or waits for its turn."
    ),
    Verb.revive: VerbWords(
        "Requeues a job that the fault has ended.", "It runs again, or waits for its turn."
    ),
    Verb.release: VerbWords("Takes back what healer kept a job off.", "It is read back from Slurm."),
    Verb.reset_gpu: VerbWords("Resets the GPU on the empty node.", "The reset ended; it may have failed."),
    Verb.restart_service: VerbWords("Restarts a service on the empty node.", "The service is active."),
    Verb.diagnose: VerbWords("Runs the tests on the empty node.", "They ended; they may have failed."),
    Verb.collect: VerbWords(
        "Collects kernel log, nvidia-smi and bug report.", "All of it is here, with its checksum."
    ),
    Verb.sweep: VerbWords(
        "Tests the idle node by a job that yields.",
        "It ended; a test may have failed.",
        "Its job is cancelled.",
    ),
    Verb.bisect: VerbWords(
        "Tests halves of the job's nodes until the slow one is found.",
        "It came to a verdict.",
        "Its job is cancelled.",
    ),
    Verb.site_command: VerbWords("Starts a command of the site, once.", "It ended with 0 or 1."),
    Verb.ticket: VerbWords("Files a repair ticket, or notes in it.", "It stands in healer's list."),
    Verb.notify: VerbWords("Tells people.", "It stands in healer's list."),
}

CHECK_WORDS = {
    "jobs_hit": "Lists the jobs on the faulty GPU and those that it ended.",
    "jobs_left": "Looks whether jobs that cannot end are left on the node.",
    "node_answers": "Slurm reaches the node, and no new fault line came.",
    "still_silent": "The node is still silent, and Slurm does not reach it; else the run ends.",
    "still_slow": "Enough senses still agree that it is slow; else the run ends.",
    "fabric_state": "The NVLink fabric is up on every GPU.",
    "link_counters": "The link's error counters stand still.",
    "history": "Sums up what the node has had.",
    "hung": "Proves that the job's ranks hang in the same collective.",
    "stacks": "Reads where some processes of the job stand.",
    "spare_ready": "A spare node is free that fits; else the run ends.",
    "memory_health": "Every GPU is there, and none waits for a memory repair.",
    "power_state": "The BMC says that the node is on.",
}

WAIT_WORDS = {
    "approval": "Waits until an operator approves.",
    "time": "Waits for a set time.",
    "job_end": "Waits until no job runs on the node.",
    "job_end_or_checkpoint": "Waits until its jobs end, or each has saved a durable checkpoint.",
    "reached": "Waits until Slurm reaches the node.",
    "checkpoint": "Waits until the job has saved a durable checkpoint.",
    "job_runs": "Waits until the job that was put back runs.",
    "lifted": "Waits until nobody else holds the node.",
    "empty": "Waits until the node is drained and empty.",
    "repair": "Waits for the repair: a person's resume takes the run over.",
}
