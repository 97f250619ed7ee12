"""What Redfish's answers mean. Pure: documents and errors in, words for people out."""

import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from healer.ports.node_exec import BmcError, BmcUnavailable

_WORDS_MAX = 300
_FAILED = frozenset({"Exception", "Killed", "Cancelled"})
#: A task that is not known any more has ended, nobody knows how.
_GONE = frozenset({404, 410})


def said(body: Mapping[str, Any]) -> str:
    """The messages of an error (`@Message.ExtendedInfo`, DSP0266 8.6), each with its resolution."""
    error = body.get("error")
    holder = error if isinstance(error, dict) else body
    told = holder.get("@Message.ExtendedInfo")
    messages = told if isinstance(told, list) else [told]
    parts = [_message(one) for one in messages if isinstance(one, dict)]
    text = " ".join(part for part in parts if part) or str(holder.get("message") or "")
    return " ".join(text.split())[:_WORDS_MAX]


def _message(one: Mapping[str, Any]) -> str:
    """BMCs that leave the text out still name the message: `Base.1.12.ResourceInUse`."""
    text = str(one.get("Message") or one.get("MessageId") or "")
    way_out = str(one.get("Resolution") or "")
    return f"{text} {way_out}".strip() if way_out.lower() != "none." else text


def reset_kinds(info: Mapping[str, Any]) -> list[str] | None:
    """The values of `ResetType` out of an ActionInfo; None where it does not tell them."""
    parameters = info.get("Parameters")
    for one in parameters if isinstance(parameters, list) else []:
        if isinstance(one, dict) and one.get("Name") == "ResetType":
            values = one.get("AllowableValues")
            return [str(value) for value in values] if isinstance(values, list) else None
    return None


def task_words(status: int, body: Mapping[str, Any]) -> str | None:
    """Why a task failed; None where it runs, went well, or nobody knows. A task monitor answers 202 while it
    runs and with the result of what was asked afterwards, a Task with its state."""
    if status in _GONE or status >= 500 or status in (401, 403, 429):
        return None
    if status >= 400:
        return said(body) or f"its task ended with {status}"
    state, health = str(body.get("TaskState") or ""), str(body.get("TaskStatus") or "")
    if state in _FAILED or (state == "Completed" and health == "Critical"):
        messages = {"@Message.ExtendedInfo": body.get("Messages")}
        return said(messages) or f"its task is {state}"
    return None


def retry_after_s(value: str | None) -> float | None:
    """Seconds of Retry-After, a minute at most; a date counts as not said: clocks of BMCs are often wrong."""
    return min(60.0, float(value)) if value and value.strip().isdigit() else None


def failed_before_answer(node: str, error: Exception, left_s: float) -> BmcError:
    """Without the address. Where no connection stood surely nothing was sent."""
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return BmcError(f"HEALER_BMC_URL makes no address for {node}.")
    if (why := _certificate(error)) is not None:
        return BmcError(
            f"The certificate of the BMC of {node} is not trusted ({why}): nothing was sent. "
            "HEALER_BMC_CA_FILE has to name the authority that signed it."
        )
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return BmcUnavailable(f"The BMC of {node} cannot be reached: {_cause(error)}.", sent=False)
    if isinstance(error, httpx.TimeoutException):
        return BmcUnavailable(f"The BMC of {node} did not answer within {left_s:.3g} s.")
    return BmcUnavailable(f"The BMC of {node} broke off: {_cause(error)}.")


def _certificate(error: BaseException | None) -> str | None:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return None


def _cause(error: BaseException | None) -> str:
    first = error
    while error is not None:
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        error = error.__cause__ or error.__context__
    return str(first) or type(first).__name__
