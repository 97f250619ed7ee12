"""Mode auto is earned: a rule that acts alone has been right before, and asks again once it is not. Pure.

A mode of the files or of HEALER_MODE is a person's word and needs no proof. What is changed while healer runs
does; the way down is always free, and so is the way back to what the files say.
"""

from healer.model import Earn, Mode, Proof


def lacks(proof: Proof, earn: Earn) -> str | None:
    """What keeps the rule from mode auto, in one sentence; None: nothing."""
    if proof.judged < earn.incidents:
        return (
            f"{proof.judged} of {earn.incidents} incidents of it are judged that auto needs: review more of "
            "them, or set the mode in rules/"
        )
    if proof.precision is not None and proof.precision < earn.precision:
        return (
            f"{proof.right} of the last {proof.judged} incidents of it were true faults "
            f"({proof.precision:.2f}), auto needs {earn.precision:.2f}"
        )
    return None


def falls_back(mode: Mode, proof: Proof, earn: Earn) -> str | None:
    """Why a rule in mode auto acts alone no longer; None: it does.

    More false alarms among the newest incidents than the precision lets pass, however many there are by now:
    a rule that was wrong twice in its first three is not waited for until it has had thirty.
    """
    allowed = (1 - earn.precision) * earn.incidents
    if mode is not Mode.auto or proof.wrong <= allowed:
        return None
    return f"{proof.wrong} of its last {proof.judged} judged incidents were false alarms: it asks first now"
